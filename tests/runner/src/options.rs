//! Options: libtest's, and those of this runner.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::shard::Shard;

/// libtest's options and the runner's.
#[derive(clap::Parser, Clone, Debug)]
#[command(version = None, about = "Runs tests. libtest's options come first, the runner's own below.")]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) libtest: libtest_mimic::Arguments,

    /// Further filters: a test runs if any of them matches
    #[arg(value_name = "FILTER")]
    more_filters: Vec<String>,

    /// End each test after this long (and those with a longer limit of their own after theirs)
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,

    /// Run share INDEX (1 to COUNT) of the tests: shares are disjoint, and of like cost
    #[arg(long, value_name = "INDEX/COUNT")]
    pub(crate) shard: Option<Shard>,

    /// Costs of tests, for --shard: a file of lines "SECONDS NAME"
    #[arg(long, value_name = "FILE", requires = "shard")]
    costs: Option<PathBuf>,

    /// Run each failed test once more, alone, after all others: one that then passes is reported as a
    /// flake, and remains a failure
    #[arg(long)]
    pub(crate) rerun_failed: bool,

    /// Write a JSON line for each start and each end of a test, at once
    #[arg(long, value_name = "FILE")]
    pub(crate) results: Option<PathBuf>,

    /// Write a JUnit report, anew after each test
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,
}

impl Options {
    /// Whether the filters name this test.
    pub(crate) fn names(&self, test: &str) -> bool {
        let matches =
            |part: &String| if self.libtest.exact { test == part } else { test.contains(part.as_str()) };
        let mut filters = self.libtest.filter.iter().chain(&self.more_filters).peekable();
        (filters.peek().is_none() || filters.any(matches)) && !self.libtest.skip.iter().any(matches)
    }

    pub(crate) fn limit(&self) -> Option<Duration> {
        self.limit.map(Duration::from_secs)
    }

    /// Reads the file of costs, in which `#` begins a comment.
    pub(crate) fn costs(&self) -> Result<BTreeMap<String, f64>, String> {
        let Some(path) = &self.costs else { return Ok(BTreeMap::new()) };
        let cannot = |error: String| format!("cannot read costs from {}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| cannot(error.to_string()))?;
        let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
        let costs = lines.map(|line| {
            let parsed =
                line.split_once(' ').and_then(|(cost, name)| Some((name.to_owned(), cost.parse().ok()?)));
            parsed.ok_or_else(|| cannot(format!("'{line}' is not SECONDS NAME")))
        });
        costs.collect()
    }

    /// Returns what is left for libtest-mimic to heed: this runner has selected the tests.
    pub(crate) fn for_mimic(&self) -> libtest_mimic::Arguments {
        let threads = || std::env::var("RUST_TEST_THREADS").ok().and_then(|count| count.parse().ok());
        libtest_mimic::Arguments {
            test_threads: self.libtest.test_threads.or_else(threads),
            quiet: self.libtest.quiet,
            logfile: self.libtest.logfile.clone(),
            color: self.libtest.color,
            format: self.libtest.format,
            ..libtest_mimic::Arguments::default()
        }
    }
}
