//! The same measurement with both irqchips, and which of the two is faster.

use std::fmt;

use volt_benches::stats::{Times, milliseconds, percentiles, ratio};
use volt_benches::table::Table;
use volt_vmm::IrqchipKind;

/// Both, in the order of the rows.
pub const BOTH: [IrqchipKind; 2] = [IrqchipKind::Kernel, IrqchipKind::Split];

/// Results, act by act, and the verdict.
pub struct Rivals {
    table: Table,
    verdict: Vec<String>,
}

impl Rivals {
    pub fn new(unit: &str) -> Self {
        Self { table: Table::new(&[unit, "runs", "min", "p50", "p90", "p99"]), verdict: Vec::new() }
    }

    /// The times of one act, with each in the order of [`BOTH`].
    pub fn add(&mut self, act: &str, times: &[Times; 2]) {
        for (irqchip, times) in BOTH.iter().zip(times) {
            let cells = [format!("{act}, {irqchip}"), times.len().to_string()];
            self.table.row(cells.into_iter().chain(percentiles(times)));
        }
        let [kernel, split] = times.each_ref().map(|times| times.percentile(50));
        let (faster, quick, slow) =
            if split < kernel { ("split", split, kernel) } else { ("kernel", kernel, split) };
        self.verdict.push(format!(
            "{act}: {faster} is faster, {} ms against {} in the median, {:.2} times",
            milliseconds(quick),
            milliseconds(slow),
            ratio(slow, quick)
        ));
    }
}

impl fmt::Display for Rivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.table)?;
        self.verdict.iter().try_for_each(|line| writeln!(f, "- {line}"))
    }
}
