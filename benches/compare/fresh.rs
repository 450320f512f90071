//! Acts of the library by several fresh probes of either build, which start in turns. The minimum of one
//! process depends on where its memory happens to lie; the minimum of ten does not.

use std::path::PathBuf;

use volt_benches::Result;
use volt_benches::stats::{Times, milliseconds, ratio};
use volt_benches::table::Table;

use crate::build::Build;
use crate::rows::Rows;

/// Has `processes` probes of each build do every act `runs` times, after a first round that warms them up.
///
/// # Errors
/// A probe does not start, or an act fails.
pub fn measure(builds: &[&PathBuf; 2], acts: &[&str], processes: usize, runs: usize) -> Result<Table> {
    let mut all = Vec::new();
    for process in 0..processes {
        eprintln!("measuring by fresh processes: {} of {processes}", process + 1);
        let mut rows = Rows::default();
        for turn in [process % 2, (process + 1) % 2] {
            let mut build = Build::start(builds[turn], None)?;
            for run in 0..=runs {
                for act in acts {
                    let times = build.act(act)?;
                    if run > 0 {
                        times
                            .into_iter()
                            .for_each(|(part, time)| rows.add(&format!("{act}{part}"), turn, time));
                    }
                }
            }
        }
        all.push(rows);
    }
    Ok(table(&all))
}

/// The least of all, and the medians of the processes' minima and of their medians, of the old build and the
/// new.
fn table(of_processes: &[Rows]) -> Table {
    let mut table = Table::new(&[
        "ms, old then new",
        "processes",
        "least",
        "least",
        "new / old",
        "median minimum",
        "median minimum",
        "new / old",
        "median p50",
        "median p50",
        "new / old",
    ]);
    let names = of_processes.first().into_iter().flat_map(Rows::iter).map(|(name, _)| name);
    for (row, name) in names.enumerate() {
        // Percentile over the processes of each process's own percentile.
        let over = |of_each: usize, of_all: usize| {
            [0, 1].map(|build| {
                let times = of_processes.iter().filter_map(|rows| rows.iter().nth(row));
                let times: Times = times.map(|(_, times)| times[build].percentile(of_each)).collect();
                times.percentile(of_all)
            })
        };
        let mut cells = vec![name.to_owned(), of_processes.len().to_string()];
        for [old, new] in [over(0, 0), over(0, 50), over(50, 50)] {
            cells.extend([milliseconds(old), milliseconds(new), format!("{:.2}", ratio(new, old))]);
        }
        table.row(cells);
    }
    table
}
