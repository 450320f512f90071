//! Forks in processes of their own, as `volt-vmm fork` makes them.

use std::fs;
use std::time::Instant;

use volt_benches::forks::{Children, Parent};
use volt_benches::scratch::Scratch;
use volt_benches::table::Table;
use volt_benches::{OrSay, Result};

use crate::{Options, alive, guest, sequence};
use volt_benches::held::{Host, unique_kib};

/// At once: a parent has a socket for each until it runs.
const BATCH: usize = 100;

fn boot(options: &Options, scratch: &Scratch) -> Result<Parent> {
    Parent::boot(scratch, &guest::cmdline(options), (options.memory_mib, options.irqchip))
}

/// Measures many at once.
///
/// # Errors
/// The host has no room for so many.
pub fn alive(options: &Options, scratch: &Scratch, table: &mut Table) -> Result<()> {
    let parent = boot(options, scratch)?;
    let mut children = Children::default();
    // The first fork freezes the parent's memory, which the others find frozen.
    parent.fork(1, &scratch.path("first"), &mut children)?;
    children.end();
    let host = Host::now()?;
    let mut left = options.alive;
    while left > 0 {
        let count = left.min(BATCH);
        parent.fork(count, &scratch.path(&format!("batch-{left}")), &mut children)?;
        left -= count;
    }
    children.check()?;
    let taken = Host::now()?.since(host);
    let unique = children.all().map(|(pid, _)| unique_kib(pid)).sum::<Result<u64>>()?;
    table.row(alive::row("forks, a process each", options.alive, unique.cast_signed(), taken));
    Ok(())
}

/// Measures many in sequence.
///
/// # Errors
/// One fails.
pub fn in_sequence(options: &Options, scratch: &Scratch, table: &mut Table) -> Result<()> {
    let parent = boot(options, scratch)?;
    let mut children = Children::default();
    let directory = scratch.path("one");
    sequence::of_many(("a process each", options.spawned, parent.running.id()), table, || {
        let start = Instant::now();
        parent.fork(1, &directory, &mut children)?;
        let took = start.elapsed();
        children.check()?;
        children.end();
        fs::remove_dir_all(&directory).or_say("remove a directory")?;
        Ok(took)
    })
}
