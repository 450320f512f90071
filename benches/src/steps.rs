//! Times of named steps, such as those that a restore consists of.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::stats::{Times, percentiles};
use crate::table::Table;

/// See the module. Steps keep the order in which they first came.
#[derive(Debug, Default)]
pub struct Steps {
    order: Vec<&'static str>,
    times: BTreeMap<&'static str, Times>,
}

impl Steps {
    /// Adds a time of the step with this name.
    pub fn add(&mut self, name: &'static str, time: Duration) {
        if !self.times.contains_key(name) {
            self.order.push(name);
        }
        self.times.entry(name).or_default().add(time);
    }

    /// The times of one step.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Times> {
        self.times.get(name)
    }

    /// A row for each step, with `label` of its name, beside those of `other`, which is called `beside`.
    #[must_use]
    pub fn table(&self, label: impl Fn(&str) -> String, (other, beside): (&Self, &str)) -> Table {
        let beside = format!("{beside} min");
        let mut table = Table::new(&["step, ms", "min", "p50", "p90", "p99", &beside, "p50", "p90", "p99"]);
        for name in &self.order {
            let mut cells = vec![label(name)];
            cells.extend(percentiles(&self.times[name]));
            if let Some(other) = other.times.get(name) {
                cells.extend(percentiles(other));
            }
            table.row(cells);
        }
        table
    }
}
