//! Tests of the runner itself, with suites of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::Value;

use crate::limit::Outcome;
use crate::options::Options;
use crate::report::{Ended, junit};
use crate::shard::Shard;
use crate::{Need, Suite, Test};

const SUITE: Suite = Suite { name: "sample", limit: Duration::from_secs(60) };

const fn sample(function: &'static str, run: fn(), needs: &'static [(&'static str, Need)]) -> Test {
    Test { module: "sample::tests", function, run, limit: None, needs }
}

/// Files of one run.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("volt-test-runner-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Runs tests with these options. Returns the exit status, and the results without starts.
    fn run(&self, tests: &'static [Test], options: &[&str]) -> (i32, Vec<Value>) {
        let results = self.path("results");
        // Not on the screen, where failures of these samples would be counted with the real ones.
        let screen = self.path("screen");
        let [results_file, screen] = [&results, &screen].map(|path| path.to_str().unwrap());
        let usual = ["sample", "--results", results_file, "--logfile", screen];
        let status = SUITE.run(tests.iter(), &Options::parse_from(usual.iter().chain(options))).unwrap();
        let lines = std::fs::read_to_string(results).unwrap();
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        (status, lines.filter(|line| line["event"] != "started").collect())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn test_past_its_limit_fails_by_name_and_the_others_run() {
    fn sleeps() {
        std::thread::sleep(Duration::from_secs(3600));
    }
    static TESTS: [Test; 2] = [
        Test { limit: Some(Duration::from_millis(50)), ..sample("hangs", sleeps, &[]) },
        sample("passes", || {}, &[]),
    ];
    let start = Instant::now();
    let (status, results) = Files::new("limit").run(&TESTS, &["--rerun-failed", "--test-threads=1"]);
    assert!(start.elapsed() < Duration::from_secs(3600));
    assert_eq!(status, 101);
    assert_eq!(results.len(), 2, "a test past its limit does not run once more: {results:?}");
    assert_eq!((&results[0]["test"], &results[0]["outcome"]), (&"tests::hangs".into(), &"failed".into()));
    assert_eq!(results[0]["reason"], "did not end within its limit of 50ms");
    assert_eq!((&results[1]["test"], &results[1]["outcome"]), (&"tests::passes".into(), &"passed".into()));
}

#[test]
fn abandoned_test_fails_with_its_message_and_its_processes_end() {
    use std::io::Read;
    use std::process::{Child, Command, Stdio};
    use std::sync::Mutex;
    static CHILDREN: Mutex<Vec<Child>> = Mutex::new(Vec::new());
    // A shell and its child.
    fn start() {
        let mut command = Command::new("sh");
        let child = command.args(["-c", "sleep 60; true"]).stdout(Stdio::piped()).spawn().unwrap();
        CHILDREN.lock().unwrap().push(child);
    }
    fn blocks() {
        start();
        std::thread::spawn(start).join().unwrap();
        let watch = crate::watch();
        std::thread::spawn(move || watch.abandon("waited in vain".to_owned()));
        std::thread::sleep(Duration::from_secs(3600));
    }
    static TESTS: [Test; 2] = [sample("blocks", blocks, &[]), sample("passes", || {}, &[])];
    let files = Files::new("abandon");
    let report = files.path("junit.xml");
    let options = ["--rerun-failed", "--test-threads=1", "--junit", report.to_str().unwrap()];
    let start = Instant::now();
    let (status, results) = files.run(&TESTS, &options);
    assert_eq!((status, results.len()), (101, 2));
    assert_eq!((&results[0]["outcome"], &results[0]["reason"]), (&"failed".into(), &"waited in vain".into()));
    assert_eq!(results[1]["outcome"], "passed");
    assert!(std::fs::read_to_string(report).unwrap().contains("type=\"limit\""));
    for mut child in CHILDREN.lock().unwrap().drain(..) {
        // The output ends with the last process that has it.
        child.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
        let ended = child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(9));
    }
    assert!(start.elapsed() < Duration::from_secs(50), "the processes ended by themselves");
}

#[test]
fn panic_is_reported_whatever_its_destructors_do() {
    struct Blocks;
    impl Drop for Blocks {
        fn drop(&mut self) {
            let watch = crate::watch();
            std::thread::spawn(move || watch.abandon("waited in vain".to_owned()));
            std::thread::sleep(Duration::from_secs(3600));
        }
    }
    struct Hangs;
    impl Drop for Hangs {
        fn drop(&mut self) {
            std::thread::sleep(Duration::from_secs(3600));
        }
    }
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            let _ = std::panic::catch_unwind(|| panic!("another"));
        }
    }
    fn panics_again() {
        let _panics = Panics;
        panic!("the cause");
    }
    fn panics_and_waits() {
        let _blocks = Blocks;
        panic!("the cause");
    }
    fn panics_and_hangs() {
        let _hangs = Hangs;
        panic!("the cause");
    }
    const LIMIT: Option<Duration> = Some(Duration::from_millis(500));
    static TESTS: [Test; 3] = [
        sample("panics_again", panics_again, &[]),
        Test { limit: LIMIT, ..sample("panics_and_hangs", panics_and_hangs, &[]) },
        sample("panics_and_waits", panics_and_waits, &[]),
    ];
    let (_, results) = Files::new("unwinding").run(&TESTS, &["--test-threads=1"]);
    let ends = ["another", "did not end within its limit of 500ms", "waited in vain"];
    assert_eq!(results.len(), ends.len());
    for (result, end) in results.iter().zip(ends) {
        let reason = result["reason"].as_str().unwrap();
        assert!(reason.starts_with("panicked at ") && reason.contains(":\nthe cause\n"), "{reason}");
        assert!(reason.ends_with(end), "{reason}");
    }
}

#[test]
fn junit_report_is_there_before_the_run_ends() {
    static REPORT: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    fn reads() {
        let report = std::fs::read_to_string(REPORT.get().unwrap()).unwrap();
        assert!(report.contains("name=\"a_passes\"") && report.ends_with("</testsuites>\n"), "{report}");
    }
    static TESTS: [Test; 2] = [sample("a_passes", || {}, &[]), sample("b_reads", reads, &[])];
    let files = Files::new("early-junit");
    let report = REPORT.get_or_init(|| files.path("junit.xml"));
    let (status, _) = files.run(&TESTS, &["--test-threads=1", "--junit", report.to_str().unwrap()]);
    assert_eq!(status, 0);
}

#[test]
fn skipped_test_does_not_run_and_counts_as_skipped() {
    fn lacks() -> Option<String> {
        Some("no such thing here".to_owned())
    }
    static TESTS: [Test; 3] = [
        sample("asks_late", || crate::skip("found out late"), &[]),
        sample("needs_nothing", || assert!(crate::needs().is_empty()), &[]),
        sample("needs_something", || panic!("it ran"), &[("air", || None), ("thing", lacks)]),
    ];
    let (status, results) = Files::new("skip").run(&TESTS, &["--test-threads=1"]);
    assert_eq!(status, 0);
    let of = |at: usize| (results[at]["outcome"].as_str().unwrap(), results[at]["reason"].as_str());
    assert_eq!(of(0), ("skipped", Some("found out late")));
    assert_eq!(of(1), ("passed", None));
    assert_eq!(of(2), ("skipped", Some("no such thing here")));
}

#[test]
fn flake_is_reported_and_remains_a_failure() {
    use std::sync::atomic::{AtomicBool, Ordering};
    static RAN: AtomicBool = AtomicBool::new(false);
    static TESTS: [Test; 2] = [
        sample("fails", || panic!("always"), &[]),
        sample("fails_once", || assert!(RAN.swap(true, Ordering::SeqCst), "the first time"), &[]),
    ];
    let files = Files::new("flake");
    let report = files.path("junit.xml");
    let options = ["--rerun-failed", "--test-threads=1", "--junit", report.to_str().unwrap()];
    let (status, results) = files.run(&TESTS, &options);
    assert_eq!(status, 101);
    let outcomes: Vec<_> = results.iter().map(|line| (&line["event"], &line["outcome"])).collect();
    let (ended, reran) = (&Value::from("ended"), &Value::from("reran"));
    let (failed, passed) = (&Value::from("failed"), &Value::from("passed"));
    assert_eq!(outcomes, [(ended, failed), (ended, failed), (reran, failed), (reran, passed)]);
    assert!(results[1]["reason"].as_str().unwrap().contains("the first time"), "{results:?}");
    let report = std::fs::read_to_string(report).unwrap();
    assert!(report.contains("type=\"panic\"") && report.contains("type=\"flake\""), "{report}");
}

#[test]
fn shards_are_complete_disjoint_and_of_like_cost() {
    let names: Vec<String> = (0..101).map(|number| format!("tests::number_{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let costs: BTreeMap<String, f64> =
        names.iter().zip(0..90).map(|(name, cost)| ((*name).to_owned(), f64::from(cost))).collect();
    for count in [1, 2, 3, 7, 200] {
        let shards: Vec<BTreeSet<String>> = (1..=count)
            .map(|index| format!("{index}/{count}").parse::<Shard>().unwrap().of(&names, &costs))
            .collect();
        assert_eq!(shards.iter().map(BTreeSet::len).sum::<usize>(), names.len());
        let together: BTreeSet<&str> = shards.iter().flatten().map(String::as_str).collect();
        assert_eq!(together, names.iter().copied().collect());
        let sum =
            |shard: &BTreeSet<String>| shard.iter().map(|name| costs.get(name).unwrap_or(&8.0)).sum::<f64>();
        let sums: Vec<f64> = shards.iter().map(sum).collect();
        let most = sums.iter().copied().fold(0.0, f64::max);
        let least = sums.iter().copied().fold(f64::MAX, f64::min);
        assert!(most - least <= 89.0, "{sums:?}");
    }
    for wrong in ["", "1", "0/2", "3/2", "1/0", "a/b", "-1/2"] {
        assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
    }
}

#[test]
fn names_are_filtered_as_by_libtest() {
    let named = |options: &[&str]| {
        let options = Options::parse_from(["sample"].iter().chain(options));
        ["a::one", "a::one_more", "b::two"].into_iter().filter(|name| options.names(name)).collect::<Vec<_>>()
    };
    assert_eq!(named(&[]), ["a::one", "a::one_more", "b::two"]);
    assert_eq!(named(&["one"]), ["a::one", "a::one_more"]);
    assert_eq!(named(&["one", "two"]), ["a::one", "a::one_more", "b::two"]);
    assert_eq!(named(&["--exact", "a::one", "b::two"]), ["a::one", "b::two"]);
    assert_eq!(named(&["--exact", "one"]), [""; 0]);
    assert_eq!(named(&["one", "--skip", "more"]), ["a::one"]);
}

#[test]
fn costs_that_are_no_numbers_are_named() {
    let files = Files::new("costs");
    let path = files.path("costs");
    let costs = |text: &str| {
        std::fs::write(&path, text).unwrap();
        Options::parse_from([Path::new("sample"), "--shard=1/1".as_ref(), "--costs".as_ref(), &path]).costs()
    };
    assert_eq!(costs("# seconds\n12 a::one\n0.5 b::two\n").unwrap()["b::two"], 0.5);
    assert!(costs("twelve a::one\n").unwrap_err().contains("'twelve a::one' is not SECONDS NAME"));
}

#[test]
fn junit_is_well_formed_whatever_tests_say() {
    let ended = |outcome| Ended { outcome, took: Duration::from_millis(1500), flaky: false };
    let said = "panicked at a.rs:1:1:\n<&\"'>]]> \u{1b}[31mred\u{0}\r\n\u{ffff}";
    let tests = BTreeMap::from([
        ("a::fails".to_owned(), ended(Outcome::Failed(said.to_owned()))),
        ("a::hangs".to_owned(), ended(Outcome::TimedOut("no <end>".to_owned()))),
        ("a::passes".to_owned(), ended(Outcome::Passed)),
        ("b::c::skips".to_owned(), ended(Outcome::Skipped("no \"thing\" & no other".to_owned()))),
    ]);
    let text = junit("sample", Duration::from_secs(2), &tests);
    let document = roxmltree::Document::parse(&text).unwrap();
    let suite = document.descendants().find(|node| node.has_tag_name("testsuite")).unwrap();
    let counts = ["tests", "failures", "skipped"].map(|name| suite.attribute(name).unwrap());
    assert_eq!(counts, ["4", "2", "1"]);
    let skipped = document.descendants().find(|node| node.has_tag_name("skipped")).unwrap();
    assert_eq!(skipped.attribute("message"), Some("no \"thing\" & no other"));
    assert_eq!(skipped.parent().unwrap().attribute("classname"), Some("b::c"));
    let failures = document.descendants().filter(|node| node.has_tag_name("failure"));
    assert_eq!(failures.map(|node| node.attribute("type").unwrap()).collect::<Vec<_>>(), ["panic", "limit"]);
}

#[test]
fn every_file_of_both_suites_is_a_module() {
    fn files(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                files(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    for suite in ["../small", "../linux"] {
        let mut found = Vec::new();
        files(&Path::new(env!("CARGO_MANIFEST_DIR")).join(suite), &mut found);
        let text: String = found.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
        // At the start of a line: a module in a comment is none.
        let lines = text.lines().map(|line| line.strip_prefix("pub ").unwrap_or(line));
        let modules: BTreeSet<&str> =
            lines.filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';')).collect();
        for path in &found {
            let directory = path.parent().and_then(Path::file_name).unwrap();
            let stem = path.file_stem().unwrap();
            let name = if stem == "mod" { directory } else { stem }.to_str().unwrap();
            assert!(
                name == "main" || modules.contains(name),
                "no test of {} runs: no `mod {name};`",
                path.display()
            );
        }
    }
}
