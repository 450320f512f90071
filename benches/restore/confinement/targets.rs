//! Targets for the cost of confinement, and whether a run meets them.

use volt_benches::stats::{Times, more};
use volt_benches::table::Table;

use super::{DEFAULT, FLOOR, OFF, PLAIN, STRICT, WORKER_DEFAULT, WORKER_OFF};
use crate::contender::Contender;

/// Cost of each mode for a restore, at most, in milliseconds.
const DEFAULT_LIMIT: f64 = 0.5;
const STRICT_LIMIT: f64 = 2.0;
/// Difference of two measurements that counts as none, in milliseconds.
const NONE: f64 = 0.05;
/// A restore with default confinement takes at most this multiple of the floor and [`DEFAULT_LIMIT`].
const FLOORS: f64 = 1.6;

/// A row for each target, by minima and by medians.
pub fn table(contenders: &[Contender]) -> Table {
    let of = |name: &str| contenders.iter().find(|contender| contender.name == name).map(|it| &it.times);
    let columns = ["target, ms", "at most", "p50", "p50 met", "at most", "min", "min met"];
    let mut table = Table::new(&columns);
    let costs = [
        ("default, more than off", DEFAULT, OFF, DEFAULT_LIMIT),
        ("strict, more than off", STRICT, OFF, STRICT_LIMIT),
        ("default, waiting, more than off", WORKER_DEFAULT, WORKER_OFF, NONE),
    ];
    for (target, name, off, limit) in costs {
        if let Some((times, off)) = of(name).zip(of(off)) {
            table.row(row(target, [50, 0].map(|percent| (limit, more(times, off, percent)))));
        }
    }
    if let Some((times, floor)) = of(PLAIN).zip(of(FLOOR)) {
        let target = format!("default, beside {FLOORS} times the floor on musl + {DEFAULT_LIMIT}");
        let at = |times: &Times, percent| times.percentile(percent).as_secs_f64() * 1e3;
        let pair = |percent| (FLOORS * at(floor, percent) + DEFAULT_LIMIT, at(times, percent));
        table.row(row(&target, [50, 0].map(pair)));
    }
    table
}

/// Limit and measured value of the median, then of the minimum.
fn row(target: &str, pairs: [(f64, f64); 2]) -> Vec<String> {
    let mut cells = vec![target.to_owned()];
    for (limit, measured) in pairs {
        let met = if measured <= limit { "yes" } else { "no" };
        cells.extend([format!("{limit:.3}"), format!("{measured:.3}"), met.to_owned()]);
    }
    cells
}
