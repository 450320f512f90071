//! Two ways to copy a running guest's memory as it was at one instant: KVM's dirty log with passes, which
//! snapshots use, and write protection by userfaultfd. An experiment: the second way is nowhere but here.
//!
//! ```text
//!   dirty log       copy all ──> copy what was written ──> ... ──> pause: copy the rest      the instant is the end
//!   write protect   pause: protect all ──> copy all; a page that is written goes first       the instant is the beginning
//! ```

mod guest;
mod memory;
mod userfault;
mod ways;

use std::time::Duration;

use volt_benches::Result;
use volt_benches::stats::{Times, milliseconds};
use volt_benches::table::Table;

use super::pause::cycles_a_second;
use guest::Guest;
use memory::Kind;
use ways::{Outcome, Way};

pub const ABOUT: &str = "This is an experiment; none of it is in the program. A guest of its own writes \
to one page after another of 256 MiB, 25,600 a second (100 MiB/s) or as fast as it can. Meanwhile its \
memory is copied to a memfd as it was at one instant. *Dirty log*: all is copied, then in passes what \
was written meanwhile, and the rest in a pause. *Write protection*: in a pause all pages are protected \
(`UFFDIO_WRITEPROTECT`). One thread then copies them in order. It first copies a page that the guest \
wants to write, and the guest waits for it. *Pause* is from the request to stop the vCPU until it goes \
on. *Stall* is the longest time between two writes of the guest by its own clock, the pause included. \
*Faults* are pages that the guest waited for; *in the pause* counts those that were copied in it. \
*Speed* is how fast the guest wrote meanwhile, of what it writes undisturbed. Each way is checked before \
it is measured: every page of the copy has the content of that instant. Minima, medians and maxima.";

pub const DECISION: &str = "\
**Decision: snapshots stay with the dirty log.** Protecting all memory inside the pause costs 16 ms for \
256 MiB here, and is work for each mapped page. The pause of the dirty log is 0.2 ms for any size, as \
long as passes are faster than the guest. Under write protection, the guest's first write to each page \
waits for the copying thread. Its speed falls to 0.4 to 0.7 of what it was (0.9 to 1.0 with the dirty \
log, but for one row), and the copy takes about twice as long. The kernel also refuses to write-protect \
a private mapping of a file on a disk, from which a VM restored from raw memory runs. Write protection \
has one advantage: it ends whatever the guest writes. For a guest that writes faster than passes can \
copy, `--max-pause` gives a clear error instead.";

/// Memory that the guest writes to.
const LEN: u64 = 256 << 20;
/// Pages a second at 100 MiB/s.
const RATE: u64 = 25_600;

/// Measures all ways over all kinds of memory.
///
/// # Errors
/// KVM refuses, or a copy is wrong.
pub fn measure(runs: usize) -> Result<Table> {
    let columns = [
        "memory, guest's rate, way",
        "runs",
        "pause, ms",
        "stall, ms",
        "whole, ms",
        "in the pause",
        "faults",
        "speed",
    ];
    let mut table = Table::new(&columns);
    for kind in Kind::ALL {
        let rates = [("100 MiB/s", cycles_a_second() / RATE), ("flat out", 0)];
        for (rate, cycles) in rates {
            let guest = Guest::start(kind, LEN, cycles)?;
            let usual = guest.speed(Duration::from_millis(500));
            for way in Way::ALL {
                let name = format!("{}, {rate}, {}", kind.name(), way.name());
                match way.copy(&guest, true) {
                    Ok(_) => {}
                    Err(ways::Failed::Refused(why)) => {
                        table.row([name, why]);
                        continue;
                    }
                    Err(ways::Failed::Error(why)) => return Err(format!("{name}: {why}")),
                }
                let mut row = Row::default();
                for _ in 0..runs {
                    row.add(way.copy(&guest, false).map_err(|failed| format!("{name}: {failed}"))?);
                }
                table.row(row.cells(name, usual));
            }
        }
    }
    Ok(table)
}

#[derive(Debug, Default)]
struct Row {
    pause: Times,
    stall: Times,
    whole: Times,
    in_pause: Vec<u64>,
    faults: Vec<u64>,
    speed: f64,
}

impl Row {
    fn add(&mut self, outcome: Outcome) {
        self.pause.add(outcome.pause);
        self.stall.add(outcome.stall);
        self.whole.add(outcome.whole);
        self.in_pause.push(outcome.pages_in_pause);
        self.faults.push(outcome.faults);
        self.speed += outcome.speed;
    }

    fn cells(mut self, name: String, usual: f64) -> Vec<String> {
        let three =
            |times: &Times| [0, 50, 100].map(|percent| milliseconds(times.percentile(percent))).join(" / ");
        let runs = self.pause.len();
        let mut middle = |of: fn(&mut Self) -> &mut Vec<u64>| {
            let of = of(&mut self);
            of.sort_unstable();
            of[of.len() / 2].to_string()
        };
        let (in_pause, faults) = (middle(|row| &mut row.in_pause), middle(|row| &mut row.faults));
        let speed = format!("{:.2}", self.speed / runs as f64 / usual);
        let times = [three(&self.pause), three(&self.stall), three(&self.whole)];
        [name, runs.to_string()].into_iter().chain(times).chain([in_pause, faults, speed]).collect()
    }
}
