//! Many forks in sequence in one process: what is left of them.

use std::thread;
use std::time::{Duration, Instant};

use volt_benches::Result;
use volt_benches::scratch::Scratch;
use volt_benches::stats::{Times, milliseconds};
use volt_benches::table::Table;

use crate::Options;
use crate::guest::Guest;
use volt_benches::held::{Host, Process};

pub const ABOUT: &str = "Each child is forked from the running VM, lives, and ends before the next one. \
*Fork* is the time until the child has answered a typed byte or, in a process of its own, until \
`volt-vmm fork` has ended and the child runs. The benchmark counts the resources of the forked VM's \
process after a tenth of the forks and after all: growth would be a leak. *Unique* includes the \
benchmark's list of times. *Kernel* and *shared* (`Shmem` of /proc/meminfo, which has the memory of \
VMs) are for the whole host, other programs included.";

/// Until what the kernel still does for the end of a VM is done.
const REST: Duration = Duration::from_secs(1);

pub fn table() -> Table {
    Table::new(&[
        "",
        "forks",
        "fork, p50 ms",
        "unique KiB",
        "descriptors",
        "threads",
        "mappings",
        "processes",
        "kernel KiB",
        "shared KiB",
    ])
}

/// Measures `count` turns of `one`, which says how long its fork took.
///
/// # Errors
/// One fails, or there is no process `pid`.
pub fn of_many(
    (name, count, pid): (&str, usize, u32),
    table: &mut Table,
    mut one: impl FnMut() -> Result<Duration>,
) -> Result<()> {
    let early = count.div_ceil(10);
    let mut times = Times::default();
    let mut earlier = None;
    for number in 0..count {
        times.add(one()?);
        if number + 1 == early || number + 1 == count {
            thread::sleep(REST);
            let (process, host) = (Process::now(pid)?, Host::now()?);
            let more = host.since(*earlier.get_or_insert(host));
            let told = |kib: i64| if number + 1 == early { String::new() } else { format!("{kib:+}") };
            let Process { unique_kib, descriptors, threads, mappings, children } = process;
            let counts = [unique_kib, descriptors as u64, threads as u64, mappings as u64, children as u64];
            let mut cells = vec![format!("{name}, after {}", number + 1), times.len().to_string()];
            cells.push(milliseconds(times.percentile(50)));
            cells.extend(counts.map(|count| count.to_string()));
            cells.extend([told(more.kernel), told(more.shared)]);
            table.row(cells);
        }
    }
    Ok(())
}

/// Measures forks in this process.
///
/// # Errors
/// One fails.
pub fn measure(options: &Options, scratch: &Scratch, table: &mut Table) -> Result<()> {
    let parent = Guest::boot(options, scratch)?;
    of_many(("in one process", options.sequence, std::process::id()), table, || {
        let start = Instant::now();
        let child = parent.fork()?;
        child.answers()?;
        Ok(start.elapsed())
    })?;
    parent.answers()
}
