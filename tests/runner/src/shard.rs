//! Shares of tests for machines that run them side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

/// Seconds of a test whose cost is not known.
const USUAL_COST: f64 = 8.0;

/// One share of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    /// From 0.
    index: usize,
    count: usize,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('/').and_then(|(index, count)| {
            let (index, count): (usize, usize) = (index.parse().ok()?, count.parse().ok()?);
            (1..=count).contains(&index).then(|| Self { index: index - 1, count })
        });
        parsed.ok_or_else(|| "expected INDEX/COUNT, with an index from 1 to COUNT".to_owned())
    }
}

impl Shard {
    /// Returns this share of the tests. The dearest test goes first, to the share that costs least so far.
    pub(crate) fn of(self, tests: &[&str], costs: &BTreeMap<String, f64>) -> BTreeSet<String> {
        let cost = |test: &str| costs.get(test).copied().unwrap_or(USUAL_COST);
        let mut tests = tests.to_vec();
        tests.sort_by(|one, other| cost(other).total_cmp(&cost(one)).then(one.cmp(other)));
        let mut sums = vec![0.0; self.count];
        let mut mine = BTreeSet::new();
        for test in tests {
            let least = (0..self.count).min_by(|one, other| f64::total_cmp(&sums[*one], &sums[*other]));
            let least = least.expect("there is a share");
            sums[least] += cost(test);
            if least == self.index {
                mine.insert(test.to_owned());
            }
        }
        mine
    }
}
