//! Limits for the cost of a policy, and whether it keeps them.

use volt_benches::stats::{micros, more, ratio};
use volt_benches::table::Table;

use crate::report::Row;
use crate::workload::Workload;

/// Least speed with the policy, of that without.
const LEAST_SPEED: f64 = 0.95;
/// Most that the policy adds to a round trip, in microseconds, and to a connection's first byte, in
/// milliseconds.
const MOST_OF_ROUND_TRIP: f64 = 10.0;
const MOST_OF_FIRST_BYTE: f64 = 1.0;

/// The targets as a part of the page.
pub fn text(rows: &[&Row]) -> String {
    let columns = ["target", "limit", "p50", "met", "min", "met", "device's time"];
    let mut table = Table::new(&columns);
    let is_in_lab = std::env::var_os("VOLT_LAB").is_some();
    // Times of an emulated processor say nothing by themselves.
    let is_judged = |row: &&&Row| match row.workload {
        Workload::Send | Workload::Receive => true,
        Workload::Ping | Workload::Connect => !is_in_lab,
        Workload::HttpReceive | Workload::HttpConnect => false,
    };
    for row in rows.iter().filter(is_judged) {
        let ([off, on], [off_spent, on_spent]) = (row.times(), row.spent());
        let name = format!("{}: {}", row.backend.name(), row.workload.name());
        let device = micros(on_spent.percentile(50)) - micros(off_spent.percentile(50));
        let [some, rest] = row.halves().map(|times| times.percentile(50));
        let noise = micros(some) - micros(rest);
        let cells = match row.workload {
            Workload::Send | Workload::Receive => {
                let is_clear = (1.0 - ratio(some, rest)).abs() <= 1.0 - LEAST_SPEED;
                let ratios = [ratio(off.percentile(50), on.percentile(50)), ratio(off.min(), on.min())];
                // The device's own time, of that of the transfer.
                let own = 1.0 - device / micros(off.percentile(50));
                let numbers = [ratios[0], ratios[1], own];
                cells("at least 0.95", numbers, 3, is_clear, |ratio| ratio >= LEAST_SPEED)
            }
            Workload::Ping => {
                let mores = [50, 0].map(|at| more(&on, &off, at) * 1e3);
                let (numbers, is_clear) = ([mores[0], mores[1], device], noise.abs() <= MOST_OF_ROUND_TRIP);
                cells("10 µs more", numbers, 1, is_clear, |more| more <= MOST_OF_ROUND_TRIP)
            }
            _ => {
                let mores = [50, 0].map(|at| more(&on, &off, at));
                let numbers = [mores[0], mores[1], device / 1e3];
                let is_clear = noise.abs() / 1e3 <= MOST_OF_FIRST_BYTE;
                cells("1 ms more", numbers, 3, is_clear, |more| more <= MOST_OF_FIRST_BYTE)
            }
        };
        table.row([name].into_iter().chain(cells));
    }
    let place = match is_in_lab {
        true => "Times are those of an emulated processor, so the last two targets are judged natively.",
        false => "Medians and minima are by the guest's clock.",
    };
    format!(
        "## Targets\n\nThe policy is to cost at most 5 % of the throughput of TCP, at most 10 µs of a round \
         trip, and at most 1 ms of a new connection's first byte. {place} The last column is the \
         additional processor time of the interface's thread in volt-vmm alone, without a verdict: of a \
         transfer's time, what is left without it. *Unclear*: the same twice differs by more than the limit, \
         so this measurement does not decide.\n\n{table}"
    )
}

/// Cells of a row: two numbers by the guest's clock with their verdicts, and one of the device.
fn cells(
    limit: &str,
    numbers: [f64; 3],
    digits: usize,
    is_clear: bool,
    is_met: impl Fn(f64) -> bool,
) -> Vec<String> {
    let [p50, min, device] = numbers;
    let cells = [p50, min].into_iter().flat_map(|number| {
        let verdict = match (is_clear, is_met(number)) {
            (false, _) => "unclear",
            (true, true) => "yes",
            (true, false) => "no",
        };
        [format!("{number:.digits$}"), verdict.to_owned()]
    });
    [limit.to_owned()].into_iter().chain(cells).chain([format!("{device:.digits$}")]).collect()
}
