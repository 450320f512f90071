//! Times of both builds, a row for each thing that was measured.

use std::time::Duration;

use volt_benches::stats::{Times, milliseconds, ratio};
use volt_benches::table::Table;

/// See the module. Rows keep the order in which they first came.
#[derive(Debug, Default)]
pub struct Rows(Vec<(String, [Times; 2])>);

impl Rows {
    /// Adds a time of the build with this number.
    pub fn add(&mut self, name: &str, build: usize, time: Duration) {
        let at = self.0.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
            self.0.push((name.to_owned(), Default::default()));
            self.0.len() - 1
        });
        self.0[at].1[build].add(time);
    }

    /// Each row's name, and the times of the old build and the new.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[Times; 2])> {
        self.0.iter().map(|(name, times)| (name.as_str(), times))
    }

    /// Minima and percentiles, and the new build's share of the old one's.
    #[must_use]
    pub fn table(&self) -> Table {
        let mut table = Table::new(&[
            "ms, old then new",
            "runs",
            "min",
            "min",
            "new / old",
            "p50",
            "p50",
            "new / old",
            "p90",
            "p90",
            "p99",
            "p99",
        ]);
        for (name, [old, new]) in &self.0 {
            let pair = |percent| [old, new].map(|times| milliseconds(times.percentile(percent)));
            let share = |percent| format!("{:.2}", ratio(new.percentile(percent), old.percentile(percent)));
            let mut cells = vec![name.clone(), old.len().min(new.len()).to_string()];
            for percent in [0, 50] {
                cells.extend(pair(percent));
                cells.push(share(percent));
            }
            cells.extend(pair(90));
            cells.extend(pair(99));
            table.row(cells);
        }
        table
    }
}
