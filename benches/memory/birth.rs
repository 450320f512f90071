//! How soon a restored or forked VM runs, with VMs made ahead of time and without.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use volt_benches::scratch::Scratch;
use volt_benches::stats::{Times, percentiles, ratio};
use volt_benches::steps::Steps;
use volt_benches::table::Table;
use volt_benches::{OrSay, Result, programs};
use volt_vmm::internal::timing;
use volt_vmm::{Pool, RestoreOptions, Snapshot, Store, VmShape};

use crate::guest::{Said, boot};

pub const ABOUT: &str = "Times from the call, in a process that runs, to the guest's first byte, which \
is almost its first instruction: 128 MiB, one vCPU, page cache warm. A fork captures the running parent \
first. Runs of all kinds take turns.";

pub const ABOUT_STEPS: &str = "Steps of a restore from the pool, on the caller's thread, beside a \
restore without the pool. The first guest byte is the rest: the vCPU's thread wakes up, KVM builds the \
guest's page tables anew, and the guest runs.";

/// The last step that the call takes: what happens from here on happens on two threads.
const RESUME: &str = "resume";
const FIRST_BYTE: &str = "first guest byte";
/// Guest memory.
const MIB: u64 = 128;
/// Between two runs: what the kernel still does for the end of a VM is not the next one's to pay for.
const REST: Duration = Duration::from_millis(20);

/// Measures restores and forks.
///
/// # Errors
/// One fails.
pub fn measure(scratch: &Scratch, runs: usize) -> Result<(Table, Table)> {
    let kernel = scratch.program("chatter", programs::CHATTER)?;
    let store = Store::open(&scratch.path("").display().to_string()).or_say("open a store")?;
    let (parent, _) = boot(&kernel, "", MIB)?;
    parent.snapshot(&store, "warm").or_say("take a snapshot")?;
    let warm = Snapshot::open(&store, "warm").or_say("open the snapshot")?;
    let pool = Arc::new(Pool::new(VmShape::of(warm.config()), 2).or_say("make a pool")?);
    let rows = [
        ("restore", false),
        ("restore, from the pool", true),
        ("fork", false),
        ("fork, from the pool", true),
    ];
    let mut times = rows.map(|_| Times::default());
    let mut steps = rows.map(|_| Steps::default());
    for _ in 0..runs {
        for (number, (name, pooled)) in rows.iter().enumerate() {
            pool.wait_ready().or_say("wait for the pool")?;
            thread::sleep(REST);
            let said = Said::default();
            let pool = pooled.then(|| Arc::clone(&pool));
            let options = RestoreOptions::default().console(said.console()).pool(pool);
            let start = Instant::now();
            let (children, taken) = timing::record(|| match name.starts_with("fork") {
                true => parent.fork([options]).or_say("fork"),
                false => Ok(vec![warm.restore_with(options).or_say("restore")?]),
            });
            let children = children?;
            let total = said.first()? - start;
            times[number].add(total);
            let before_resume: Duration =
                taken.iter().take_while(|(name, _)| *name != RESUME).map(|(_, took)| *took).sum();
            taken.into_iter().for_each(|(name, took)| steps[number].add(name, took));
            steps[number].add(FIRST_BYTE, total.saturating_sub(before_resume));
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
    let [without, with, ..] = &steps;
    let label = |name: &str| match name {
        RESUME => "resume (part of the next)".to_owned(),
        name => name.to_owned(),
    };
    Ok((table, with.table(label, (without, "without the pool"))))
}
