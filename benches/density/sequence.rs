//! Many forks in sequence in one process: what is left of them.

use std::thread;
use std::time::{Duration, Instant};

use volt_benches::Result;
use volt_benches::scratch::Scratch;
use volt_benches::stats::{Times, milliseconds};
use volt_benches::table::Table;

use crate::Options;
use crate::guest::Guest;
use crate::held::{Host, Process};

pub const ABOUT: &str = "Each is forked of the running VM, lives, and goes before the next. *Fork* is the time until it has answered what was typed or, in a process of its own, from the start of `volt-vmm fork` \
to its end, when the child runs. What the process of the forked VM \
holds is counted after a tenth of them and after all: what grows with their number would be a leak. *Unique* has the list of these times in it. *Kernel* and *shared* (`Shmem` of /proc/meminfo, where \
memory of VMs is) are for the whole host, other programs among it.";

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
