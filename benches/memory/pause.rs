//! Pause of a guest for a snapshot, while it writes 100 MiB/s.

use std::time::{Duration, Instant};

use volt_benches::scratch::Scratch;
use volt_benches::stats::{Times, milliseconds, percentiles};
use volt_benches::table::Table;
use volt_benches::{OrSay, Result, programs};
use volt_vmm::{CaptureStats, SnapshotKind, SnapshotOptions, Store};

use crate::guest::{Said, boot};

pub const ABOUT: &str = "The guest has touched the given memory and goes on writing to one page after \
another of it, 25,600 a second (100 MiB/s). The first snapshot freezes its memory, and the later ones \
find it frozen. A diff is taken 0.16 s (16 MiB) after a full snapshot. *Stall* is the longest time \
between two writes that the guest itself noticed during a snapshot, including the pause; the last row \
is without a snapshot. A full snapshot of a paused VM shows the pause if the guest had to wait until \
the snapshot is written and synced. Sizes of 1 GiB and more have a quarter of the runs.";

/// Time for which the guest writes before a diff.
const DIFF_AFTER: Duration = Duration::from_millis(160);

/// Pages a second.
const RATE: u64 = 25_600;

/// Measures at each size.
///
/// # Errors
/// A snapshot fails.
pub fn measure(scratch: &Scratch, touched_mib: &[u64], runs: usize) -> Result<Table> {
    let columns = [
        "pause, ms",
        "runs",
        "min",
        "p50",
        "p90",
        "p99",
        "pages in the pause, p50",
        "whole, p50 ms",
        "stall, ms",
    ];
    let mut table = Table::new(&columns);
    let kernel = scratch.program("small-guest", programs::SMALL_GUEST)?;
    let store = Store::open(&scratch.path("").display().to_string()).or_say("open a store")?;
    for &mib in touched_mib {
        let runs = if mib < 1024 { runs } else { runs.div_ceil(4) };
        let cycles = cycles_a_second() / RATE;
        let (vm, said) = boot(&kernel, &format!("churn mib={mib} cycles={cycles}"), mib + 64)?;
        let quiet = said.longest_stall(said.len(), 4)?;
        let mut rows = [Row::default(), Row::default(), Row::default(), Row::default()];
        for run in 0..=runs {
            // The first one is the one that freezes.
            let full = take(&vm, &said, &store, SnapshotKind::Full)?;
            rows[usize::from(run > 0)].add(full);
            if run > 0 && run <= runs.div_ceil(2) {
                std::thread::sleep(DIFF_AFTER);
                rows[2].add(take(&vm, &said, &store, SnapshotKind::Diff)?);
                vm.pause().or_say("pause")?;
                let start = Instant::now();
                take_one(&vm, &store, SnapshotKind::Full)?;
                let mut stats = CaptureStats::default();
                stats.paused = start.elapsed();
                rows[3].add((stats, start.elapsed(), 0));
                vm.resume().or_say("resume")?;
                // The guest tells of that stall too.
                said.longest_stall(said.len(), 2)?;
            }
        }
        let names = ["the first, which freezes", "full", "diff", "full, of a paused VM"];
        for (name, row) in names.into_iter().zip(&rows) {
            table.row(row.cells(&format!("{name}, {mib} MiB touched")));
        }
        table.row(
            [format!("no snapshot, {mib} MiB touched")]
                .into_iter()
                .chain((1..8).map(|_| String::new()))
                .chain([in_ms(quiet)]),
        );
    }
    Ok(table)
}

/// Times of one kind of snapshot.
#[derive(Debug, Default)]
struct Row {
    pause: Times,
    whole: Times,
    pages: Vec<u64>,
    stall: u64,
}

impl Row {
    fn add(&mut self, (stats, whole, stall): (CaptureStats, Duration, u64)) {
        self.pause.add(stats.paused);
        self.whole.add(whole);
        self.pages.push(stats.pages_in_pause);
        self.stall = self.stall.max(stall);
    }

    fn cells(&self, name: &str) -> Vec<String> {
        let mut pages = self.pages.clone();
        pages.sort_unstable();
        let mut cells = vec![name.to_owned(), self.pause.len().to_string()];
        cells.extend(percentiles(&self.pause));
        cells.push(pages.get(pages.len() / 2).map_or_else(String::new, u64::to_string));
        cells.push(milliseconds(self.whole.percentile(50)));
        cells.push(if self.stall == 0 { String::new() } else { in_ms(self.stall) });
        cells
    }
}

fn take(
    vm: &volt_vmm::Vm,
    said: &Said,
    store: &Store,
    kind: SnapshotKind,
) -> Result<(CaptureStats, Duration, u64)> {
    let from = said.len();
    let start = Instant::now();
    let course = take_one(vm, store, kind)?;
    let whole = start.elapsed();
    Ok((course, whole, said.longest_stall(from, 2)?))
}

fn take_one(vm: &volt_vmm::Vm, store: &Store, kind: SnapshotKind) -> Result<CaptureStats> {
    let name = format!("{kind:?}");
    // A diff's base is of no more use here than its name; what was there before goes.
    let path = store.path_of(&name).or_say("name a snapshot")?;
    let _ = std::fs::remove_dir_all(path);
    vm.snapshot_with(store, &name, &SnapshotOptions::default().kind(kind)).or_say("take a snapshot")
}

#[allow(unsafe_code)]
pub fn cycles_a_second() -> u64 {
    // SAFETY: every x86-64 CPU has it.
    let now = || unsafe { std::arch::x86_64::_rdtsc() };
    let (start, first) = (Instant::now(), now());
    std::thread::sleep(Duration::from_millis(100));
    ((now() - first) as f64 / start.elapsed().as_secs_f64()) as u64
}

fn in_ms(cycles: u64) -> String {
    milliseconds(Duration::from_secs_f64(cycles as f64 / cycles_a_second() as f64))
}
