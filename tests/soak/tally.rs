//! Counts and times of acts.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write;
use std::time::Duration;

/// The acts so far.
#[derive(Debug, Default)]
pub struct Tally(BTreeMap<&'static str, Acts>);

#[derive(Debug, Default)]
struct Acts {
    count: u32,
    total: Duration,
    longest: Duration,
}

impl Tally {
    /// Adds an act that took so long, with its checks.
    pub fn add(&mut self, act: &'static str, took: Duration) {
        let acts = self.0.entry(act).or_default();
        acts.count += 1;
        acts.total += took;
        acts.longest = acts.longest.max(took);
    }

    /// Returns a table of all acts.
    pub fn table(&self) -> String {
        let mut table = "act, with its checks     times   mean ms   longest ms\n".to_owned();
        for (name, Acts { count, total, longest }) in &self.0 {
            let mean = total.as_millis() / u128::from((*count).max(1));
            let _ = writeln!(table, "{name:<22} {count:>7} {mean:>9} {:>12}", longest.as_millis());
        }
        table
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>6} acts", self.0.values().map(|acts| acts.count).sum::<u32>())
    }
}
