//! Runs the whole-program tests: finds what `#[test]` registered, decides what is skipped, and hands the
//! rest to libtest-mimic, each test with a limit of time.
//!
//! ```text
//! #[test] ──inventory──> select (names, shard) ──> skips ──> libtest-mimic ──> limit ──> report (screen, results, JUnit)
//! ```
//!
//! A test that fails stays a failure. With `--rerun-failed` it runs once more, alone, only to be reported
//! as a flake if it then passes.

mod children;
mod limit;
mod options;
mod report;
mod shard;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use libtest_mimic::{Completion, Trial};

pub use inventory;
pub use limit::{Watch, needs, skip, watch};

use limit::{Outcome, run_limited};
use options::Options;
use report::Report;

/// Returns why the host lacks a need of a test, if it does.
pub type Need = fn() -> Option<String>;

/// One test, as `#[test]` registers it.
pub struct Test {
    /// `module_path!()` of the function: the crate's name comes first.
    pub module: &'static str,
    /// The function's name.
    pub function: &'static str,
    /// The function.
    pub run: fn(),
    /// The test's own limit.
    pub limit: Option<Duration>,
    /// Needs by name, which the host may lack.
    pub needs: &'static [(&'static str, Need)],
}

inventory::collect!(Test);

impl Test {
    /// The name as libtest has it: the path without the crate.
    fn name(&self) -> String {
        let path = format!("{}::{}", self.module, self.function);
        path.split_once("::").map_or(path.clone(), |(_, rest)| rest.to_owned())
    }
}

/// A suite of tests in one executable.
pub struct Suite {
    /// Name in results and in JUnit.
    pub name: &'static str,
    /// Limit of each test that has none of its own.
    pub limit: Duration,
}

/// A test that was selected, and why it is skipped if it is.
struct Case {
    name: String,
    test: &'static Test,
    limit: Duration,
    lack: Option<String>,
}

impl Suite {
    /// Runs the tests of this executable as its arguments say. Ends the process: a test past its limit
    /// still has its thread.
    pub fn main(&self) -> ! {
        let options = Options::parse();
        let tests = inventory::iter::<Test>.into_iter();
        let code = self.run(tests, &options).unwrap_or_else(|error| {
            eprintln!("{}: {error}", self.name);
            2
        });
        std::process::exit(code)
    }

    fn run(&self, tests: impl Iterator<Item = &'static Test>, options: &Options) -> Result<i32, String> {
        let cases = self.select(tests, options)?;
        if options.libtest.list {
            cases.iter().for_each(|case| println!("{}: test", case.name));
            return Ok(0);
        }
        limit::keep_panics();
        let report = Arc::new(Report::new(self.name, options)?);
        let cases: Vec<Arc<Case>> = cases.into_iter().map(Arc::new).collect();
        let for_mimic = options.for_mimic();
        let is_alone = for_mimic.test_threads == Some(1);
        let trials = cases.iter().map(|case| trial(case, &report, is_alone)).collect();
        let conclusion = libtest_mimic::run(&for_mimic, trials);
        if options.rerun_failed {
            cases.iter().for_each(|case| rerun(case, &report));
        }
        report.finish()?;
        Ok(if conclusion.has_failed() { FAILED } else { 0 })
    }

    /// Returns the tests that the options name, sorted. Asks once for each need of theirs.
    fn select(
        &self,
        tests: impl Iterator<Item = &'static Test>,
        options: &Options,
    ) -> Result<Vec<Case>, String> {
        let mut named: BTreeMap<String, &'static Test> =
            tests.map(|test| (test.name(), test)).filter(|(name, _)| options.names(name)).collect();
        if let Some(shard) = options.shard {
            let names: Vec<&str> = named.keys().map(String::as_str).collect();
            let mine = shard.of(&names, &options.costs()?);
            named.retain(|name, _| mine.contains(name));
        }
        let mut lacks: BTreeMap<&str, Option<String>> = BTreeMap::new();
        let cases = named.into_iter().map(|(name, test)| {
            let lack =
                test.needs.iter().find_map(|(need, lack)| lacks.entry(need).or_insert_with(lack).clone());
            let limit = test.limit.max(options.limit()).unwrap_or(self.limit);
            Case { name, test, limit, lack }
        });
        let mut cases: Vec<Case> = cases.collect();
        if options.libtest.ignored {
            cases.retain(|case| case.lack.is_some());
        }
        if (options.libtest.ignored || options.libtest.include_ignored) && !options.libtest.list {
            cases.iter_mut().for_each(|case| case.lack = None);
        }
        Ok(cases)
    }
}

/// libtest's exit status of a run with failures.
const FAILED: i32 = 101;

fn trial(case: &Arc<Case>, report: &Arc<Report>, is_alone: bool) -> Trial {
    let (case, report) = (Arc::clone(case), Arc::clone(report));
    Trial::ignorable_test(case.name.clone(), move || {
        report.started(&case.name);
        if let Some(lack) = &case.lack {
            report.ended(&case.name, Duration::ZERO, Outcome::Skipped(lack.clone()));
            return Ok(Completion::ignored_with(lack));
        }
        let (outcome, took) = run_limited(&case, is_alone);
        report.ended(&case.name, took, outcome.clone());
        match outcome {
            Outcome::Passed => Ok(Completion::Completed),
            Outcome::Skipped(lack) => Ok(Completion::ignored_with(lack)),
            Outcome::Failed(message) | Outcome::TimedOut(message) => Err(message.into()),
        }
    })
}

/// Runs a test once more if it failed: one that passes now is a flake, and a failure all the same. A test
/// past its limit may still run and is left alone.
fn rerun(case: &Case, report: &Report) {
    if report.has_failed(&case.name) {
        let (outcome, _) = run_limited(case, true);
        report.reran(&case.name, &outcome);
    }
}
