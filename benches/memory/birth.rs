//! How soon a restored or forked VM runs, with VMs made ahead of time and without.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use volt_benches::scratch::Scratch;
use volt_benches::stats::{Times, percentiles, ratio};
use volt_benches::table::Table;
use volt_benches::{OrSay, Result, programs};
use volt_vmm::{Pool, RestoreOptions, Shape, Snapshot, Store};

use crate::guest::{Said, boot};

pub const ABOUT: &str = "From the call in a process that is there already to the guest's first byte, which is all but its first instruction: 128 MiB, one vCPU, page cache warm. \
A fork captures the running parent first. Runs of all take turns.";

/// Guest memory.
const MIB: u64 = 128;
/// Between two runs: what the kernel still does for the end of a VM is not the next one's to pay for.
const REST: Duration = Duration::from_millis(20);

/// Measures restores and forks.
///
/// # Errors
/// One fails.
pub fn measure(scratch: &Scratch, runs: usize) -> Result<Table> {
    let kernel = scratch.program("chatter", programs::CHATTER)?;
    let store = Store::open(&scratch.path("").display().to_string()).or_say("open a store")?;
    let (parent, _) = boot(&kernel, "", MIB)?;
    parent.snapshot(&store, "warm").or_say("take a snapshot")?;
    let warm = Snapshot::open(&store, "warm").or_say("open the snapshot")?;
    let pool = Arc::new(Pool::new(Shape::of(warm.config()), 2).or_say("make a pool")?);
    let rows = [
        ("restore", false),
        ("restore, from the pool", true),
        ("fork", false),
        ("fork, from the pool", true),
    ];
    let mut times = rows.map(|_| Times::default());
    for _ in 0..runs {
        for ((name, pooled), times) in rows.iter().zip(&mut times) {
            pool.wait_ready().or_say("wait for the pool")?;
            thread::sleep(REST);
            let said = Said::default();
            let pool = pooled.then(|| Arc::clone(&pool));
            let options = RestoreOptions { console: said.console(), pool, ..RestoreOptions::default() };
            let start = Instant::now();
            let children = match name.starts_with("fork") {
                true => parent.fork([options]).or_say("fork")?,
                false => vec![warm.restore_with(options).or_say("restore")?],
            };
            times.add(said.first()? - start);
            drop(children);
        }
    }
    let mut table = Table::new(&[
        "call to first guest byte, ms",
        "runs",
        "min",
        "p50",
        "p90",
        "p99",
        "p50 / without the pool",
    ]);
    for (number, (name, _)) in rows.iter().enumerate() {
        let mut cells = vec![(*name).to_owned(), times[number].len().to_string()];
        cells.extend(percentiles(&times[number]));
        if number % 2 == 1 {
            cells.push(format!(
                "{:.2}",
                ratio(times[number].percentile(50), times[number - 1].percentile(50))
            ));
        }
        table.row(cells);
    }
    Ok(table)
}
