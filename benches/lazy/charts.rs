//! Charts of chunk sizes, which trade the size of memory against the time of a fault.

use std::fmt;

use volt_benches::chart::Chart;
use volt_benches::stats::micros;
use volt_benches::table::Table;

use crate::measured::Measured;

/// A table, and the same as two charts.
#[derive(Default)]
pub struct Charts {
    kib: Vec<String>,
    /// Each contender's name, ratios, and mean fault times in microseconds.
    lines: Vec<(&'static str, Vec<f64>, Vec<f64>)>,
}

impl Charts {
    /// One more size of chunk.
    pub fn add(&mut self, measured: &Measured) {
        self.kib.push((measured.chunk_len >> 10).to_string());
        for contender in &measured.contenders {
            let name = contender.name;
            let at = self.lines.iter().position(|line| line.0 == name).unwrap_or_else(|| {
                self.lines.push((name, Vec::new(), Vec::new()));
                self.lines.len() - 1
            });
            self.lines[at].1.extend(contender.ratio);
            self.lines[at].2.push(micros(contender.times.mean()));
        }
    }
}

impl fmt::Display for Charts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let along = || ("chunk, KiB", self.kib.clone());
        let mut ratios = Chart::new("how small memory gets", along(), "pages that are not zero / file");
        let mut faults = Chart::new("the first touch of a chunk", along(), "mean, us");
        let mut columns = vec!["chunk, KiB".to_owned()];
        for (name, ratio, fault) in &self.lines {
            if !ratio.is_empty() {
                ratios.line(name, ratio.clone());
                columns.push(format!("{name}, ratio"));
            }
            faults.line(name, fault.clone());
            columns.push(format!("{name}, us"));
        }
        let columns: Vec<_> = columns.iter().map(String::as_str).collect();
        let mut table = Table::new(&columns);
        for (at, kib) in self.kib.iter().enumerate() {
            let cells = self.lines.iter().flat_map(|(_, ratio, fault)| {
                ratio.get(at).into_iter().chain([&fault[at]]).map(|value| format!("{value:.2}"))
            });
            table.row([kib.clone()].into_iter().chain(cells));
        }
        write!(
            f,
            "The ratio is of pages that are not zero to the file with its index. A fault is the first \
            touch of a chunk; its mean is shown.\n\n\
             {table}\n{ratios}\n{faults}"
        )
    }
}
