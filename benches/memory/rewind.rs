//! How long a VM takes to go back to its snapshot, beside what else gives one that has not run yet.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use volt_benches::scratch::Scratch;
use volt_benches::stats::{Times, percentiles, ratio};
use volt_benches::table::Table;
use volt_benches::{OrSay, Result, programs};
use volt_vmm::{RestoreOptions, Snapshot, Store};

use crate::guest::{Said, boot};

pub const ABOUT: &str = "A VM of 128 MiB writes to the given pages again and again, and is rewound \
while it runs. The time is from the call to its return, when the VM runs again. *Floor* reads as many \
pages from a file in the page cache, one by one. *A new VM* drops the VM and restores another. All \
kinds take turns.";

const PAGE: usize = 4096;
const MIB: u64 = 128;
/// MiB that the guest goes through, and how long it takes at least to go through all of it.
const DIRTY: [(u64, Duration); 2] = [(2, Duration::from_millis(10)), (32, Duration::from_millis(100))];

/// Measures rewinds.
///
/// # Errors
/// One fails.
pub fn measure(scratch: &Scratch, runs: usize) -> Result<Table> {
    let kernel = scratch.program("small-guest", programs::SMALL_GUEST)?;
    let store = Store::open(&scratch.path("").display().to_string()).or_say("open a store")?;
    let columns = ["rewind, ms", "runs", "min", "p50", "p90", "p99", "pages, p50", "p50 / floor"];
    let mut table = Table::new(&columns);
    let file = scratch.path("pages");
    std::fs::write(&file, vec![1; 64 << 20]).or_say("write pages")?;
    let file = File::open(file).or_say("open the pages")?;
    for (mib, enough) in DIRTY {
        let name = format!("rewind-{mib}");
        let (booted, _) = boot(&kernel, &format!("churn mib={mib}"), MIB)?;
        booted.snapshot(&store, &name).or_say("take a snapshot")?;
        drop(booted);
        let warm = Snapshot::open(&store, &name).or_say("open the snapshot")?;
        let restore = || {
            let options = RestoreOptions::default().console(Said::default().console()).rewindable();
            warm.restore_with(options).or_say("restore")
        };
        let mut vm = restore()?;
        let (mut floor, mut rewind, mut paused, mut anew) =
            (Times::default(), Times::default(), Times::default(), Times::default());
        let mut pages = Vec::new();
        for _ in 0..runs {
            thread::sleep(enough);
            let start = Instant::now();
            let rewound = vm.rewind().or_say("rewind")?;
            rewind.add(start.elapsed());
            paused.add(rewound.paused);
            pages.push(rewound.pages);
            floor.add(read_pages(&file, rewound.pages)?);
            let start = Instant::now();
            drop(vm);
            vm = restore()?;
            anew.add(start.elapsed());
        }
        pages.sort_unstable();
        let pages = pages[pages.len() / 2];
        for (what, times) in
            [("floor", &floor), ("rewind", &rewind), ("of it paused", &paused), ("a new VM", &anew)]
        {
            let mut cells = vec![format!("{what}, {mib} MiB written"), times.len().to_string()];
            cells.extend(percentiles(times));
            cells.extend([
                pages.to_string(),
                format!("{:.2}", ratio(times.percentile(50), floor.percentile(50))),
            ]);
            table.row(cells);
        }
    }
    Ok(table)
}

fn read_pages(file: &File, pages: u64) -> Result<Duration> {
    let mut room = vec![0; pages as usize * PAGE];
    // Not with the faults of memory that is new.
    room.fill(1);
    let start = Instant::now();
    for (at, page) in (0..).step_by(PAGE).zip(room.chunks_mut(PAGE)) {
        file.read_exact_at(page, at).or_say("read the pages")?;
    }
    Ok(start.elapsed())
}
