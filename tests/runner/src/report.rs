//! Reports besides libtest-mimic's lines on the screen: results as JSON lines, JUnit, and flakes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::limit::Outcome;
use crate::options::Options;

/// The end of one test.
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
    /// It failed, and passed when it ran once more.
    pub(crate) flaky: bool,
}

/// The ends of all tests so far, by name, and the file of results.
struct State {
    ended: BTreeMap<String, Ended>,
    results: Option<File>,
}

pub(crate) struct Report {
    suite: &'static str,
    started: SystemTime,
    junit: Option<PathBuf>,
    state: Mutex<State>,
}

impl Report {
    pub(crate) fn new(suite: &'static str, options: &Options) -> Result<Self, String> {
        let create = |path: &Path| File::create(path).map_err(|error| cannot_write(path, &error));
        let results = options.results.as_deref().map(create).transpose()?;
        let state = Mutex::new(State { ended: BTreeMap::new(), results });
        Ok(Self { suite, started: SystemTime::now(), junit: options.junit.clone(), state })
    }

    pub(crate) fn started(&self, test: &str) {
        self.write(&mut self.lock(), json!({ "test": test, "event": "started" }));
    }

    pub(crate) fn ended(&self, test: &str, took: Duration, outcome: Outcome) {
        let mut state = self.lock();
        let mut line = json!({ "test": test, "event": "ended", "outcome": outcome.word() });
        line["seconds"] = json!((took.as_secs_f64() * 1000.0).round() / 1000.0);
        if let Some(reason) = outcome.reason() {
            line["reason"] = json!(reason);
        }
        self.write(&mut state, line);
        state.ended.insert(test.to_owned(), Ended { outcome, took, flaky: false });
        // The run may not come to its end, which reports an error.
        let _ = self.write_junit(&state);
    }

    /// Whether a test failed and has ended.
    pub(crate) fn has_failed(&self, test: &str) -> bool {
        self.lock().ended.get(test).is_some_and(|ended| matches!(ended.outcome, Outcome::Failed(_)))
    }

    pub(crate) fn reran(&self, test: &str, outcome: &Outcome) {
        let mut state = self.lock();
        self.write(&mut state, json!({ "test": test, "event": "reran", "outcome": outcome.word() }));
        let flaky = *outcome == Outcome::Passed;
        if flaky {
            println!("FLAKE: {test} failed, and passed when it ran once more; it counts as failed");
        } else {
            println!("{test} failed once more when it ran alone");
        }
        state.ended.entry(test.to_owned()).and_modify(|ended| ended.flaky = flaky);
    }

    pub(crate) fn finish(&self) -> Result<(), String> {
        self.write_junit(&self.lock())
    }

    /// Replaces the JUnit report by one of all ends so far.
    fn write_junit(&self, state: &State) -> Result<(), String> {
        let Some(path) = &self.junit else { return Ok(()) };
        let took = self.started.elapsed().unwrap_or_default();
        let part = path.with_extension("part");
        let written = std::fs::write(&part, junit(self.suite, took, &state.ended));
        written.and_then(|()| std::fs::rename(&part, path)).map_err(|error| cannot_write(path, &error))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line at once: this process may end before its time.
    fn write(&self, state: &mut State, mut line: Value) {
        let Some(file) = &mut state.results else { return };
        line["suite"] = json!(self.suite);
        if let Err(error) = file.write_all(format!("{line}\n").as_bytes()) {
            eprintln!("cannot write results: {error}");
            std::process::abort();
        }
    }
}

impl Outcome {
    fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Skipped(_) => "skipped",
            Self::Failed(_) | Self::TimedOut(_) => "failed",
        }
    }

    fn reason(&self) -> Option<&str> {
        match self {
            Self::Passed => None,
            Self::Skipped(reason) | Self::Failed(reason) | Self::TimedOut(reason) => Some(reason),
        }
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> String {
    format!("cannot write {}: {error}", path.display())
}

/// Returns a JUnit report. The module of a test is its class.
pub(crate) fn junit(suite: &str, took: Duration, tests: &BTreeMap<String, Ended>) -> String {
    let count = |word| tests.values().filter(|ended| ended.outcome.word() == word).count();
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"{}\" tests=\"{}\" \
         failures=\"{}\" errors=\"0\" skipped=\"{}\" time=\"{:.3}\">\n",
        escape(suite),
        tests.len(),
        count("failed"),
        count("skipped"),
        took.as_secs_f64()
    );
    for (name, ended) in tests {
        let (class, function) = name.rsplit_once("::").unwrap_or(("", name));
        let (class, function) = (escape(class), escape(function));
        let time = ended.took.as_secs_f64();
        let inner = match &ended.outcome {
            Outcome::Passed => String::new(),
            Outcome::Skipped(reason) => format!("<skipped message=\"{}\"/>", escape(reason)),
            Outcome::Failed(said) if ended.flaky => failure("flake", said),
            Outcome::Failed(said) => failure("panic", said),
            Outcome::TimedOut(said) => failure("limit", said),
        };
        let _ = writeln!(
            text,
            "<testcase classname=\"{class}\" name=\"{function}\" time=\"{time:.3}\">{inner}</testcase>"
        );
    }
    text + "</testsuite>\n</testsuites>\n"
}

fn failure(kind: &str, said: &str) -> String {
    let first = said.lines().nth(1).or(said.lines().next()).unwrap_or_default();
    format!("<failure type=\"{kind}\" message=\"{}\">{}</failure>", escape(first), escape(said))
}

/// Escapes text for XML 1.0, which has no place at all for most control characters.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(character),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}
