//! The library: from the call on an open snapshot to the guest's first byte, in this process, and where the
//! time goes.

use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use volt_benches::chart::Chart;
use volt_benches::first_byte::FirstByte;
use volt_benches::stats::{Times, percentiles, ratio};
use volt_benches::steps::Steps;
use volt_benches::table::Table;
use volt_benches::{OrSay, Result};
use volt_vmm::internal::timing;
use volt_vmm::{Console, RestoreOptions, Snapshot, Store};

use crate::floor::{Floor, STEPS};
use crate::subject::Subject;

/// How long a guest may take to its first byte.
const LIMIT: Duration = Duration::from_secs(10);
/// The steps of [`Snapshot::open`], which a snapshot that is open already does not take.
const OPEN: [&str; 2] = ["state load, CRC", "host check"];
/// The last step: what happens from here on happens on two threads.
const RESUME: &str = "resume";
const FIRST_BYTE: &str = "first guest byte";

/// Results at one size.
#[derive(Default)]
struct Measured {
    total: Times,
    floor_total: Times,
    drop: Times,
    floor_close: Times,
    steps: Steps,
    floor_steps: Steps,
}

/// Totals of all subjects, and their medians over the size of memory.
pub type Totals = (Table, Chart);

/// Totals of all subjects, then the steps of each.
///
/// # Errors
/// A restore fails.
pub fn measure(subjects: &[Subject], runs: usize, pause: Duration) -> Result<(Totals, Vec<(u64, Table)>)> {
    let columns =
        ["call to first guest byte, ms", "runs", "min", "p50", "p90", "p99", "p50 / floor", "min / floor"];
    let mut totals = Table::new(&columns);
    let mut details = Vec::new();
    let (mut ours, mut floors) = (Vec::new(), Vec::new());
    for subject in subjects {
        let measured = measure_one(subject, runs, pause)?;
        let mut row = |name: &str, times: &Times, floor: Option<&Times>| {
            let mut cells = vec![format!("{name}, {} MiB", subject.mib), times.len().to_string()];
            cells.extend(percentiles(times));
            if let Some(floor) = floor {
                cells.push(format!("{:.2}", ratio(times.percentile(50), floor.percentile(50))));
                cells.push(format!("{:.2}", ratio(times.min(), floor.min())));
            }
            totals.row(cells);
        };
        row("floor", &measured.floor_total, None);
        row("Snapshot::restore", &measured.total, Some(&measured.floor_total));
        row("closing the floor's VM", &measured.floor_close, None);
        row("dropping the Vm", &measured.drop, None);
        ours.push(measured.total.percentile(50).as_secs_f64() * 1e3);
        floors.push(measured.floor_total.percentile(50).as_secs_f64() * 1e3);
        details.push((subject.mib, breakdown(&measured.steps, (&measured.floor_steps, "floor"))));
    }
    let sizes = subjects.iter().map(|subject| subject.mib.to_string()).collect();
    let mut chart = Chart::new("call to first guest byte", ("guest memory, MiB", sizes), "p50, ms");
    chart.line("Snapshot::restore", ours);
    chart.line("floor", floors);
    Ok(((totals, chart), details))
}

fn measure_one(subject: &Subject, runs: usize, pause: Duration) -> Result<Measured> {
    let floor = Floor::new(&subject.memory_file(), &subject.digest)?;
    let (store, name) = Store::split(&subject.dir).or_say("open the store")?;
    let mut measured = Measured::default();
    floor.restore()?; // once for the page cache
    for run in 0..runs {
        for turn in 0..2 {
            if (run + turn) % 2 == 0 {
                floor_run(&floor, &mut measured)?;
            } else {
                volt_run(&store, &name, &mut measured)?;
            }
            thread::sleep(pause);
        }
    }
    Ok(measured)
}

fn floor_run(floor: &Floor, measured: &mut Measured) -> Result<()> {
    let timing = floor.restore()?;
    measured.floor_total.add(timing.total);
    measured.floor_close.add(timing.close);
    STEPS.iter().zip(timing.steps).for_each(|((_, name), took)| measured.floor_steps.add(name, took));
    Ok(())
}

fn volt_run(store: &Store, name: &str, measured: &mut Measured) -> Result<()> {
    let (snapshot, open_steps) = timing::record(|| Snapshot::open(store, name));
    let snapshot = snapshot.or_say("open the snapshot")?;
    let (first, told) = channel();
    let start = Instant::now();
    let (vm, steps) = timing::record(|| {
        let console = Console::to(FirstByte::new(first));
        snapshot.restore_with(RestoreOptions::default().console(console))
    });
    let vm = vm.or_say("restore the snapshot")?;
    let total = told.recv_timeout(LIMIT).or_say("hear from the guest")? - start;
    let dropping = Instant::now();
    drop(vm);
    measured.drop.add(dropping.elapsed());
    measured.total.add(total);
    let before_resume = steps.iter().take_while(|(name, _)| *name != RESUME).map(|(_, took)| *took).sum();
    for (name, took) in open_steps.into_iter().chain(steps) {
        measured.steps.add(name, took);
    }
    measured.steps.add(FIRST_BYTE, total.saturating_sub(before_resume));
    Ok(())
}

/// The steps of restoring one snapshot, beside those of another, which takes turns with it.
///
/// # Errors
/// A restore fails.
pub fn compare(one: &Path, (other, beside): (&Path, &str), runs: usize, pause: Duration) -> Result<Table> {
    let mut measured = [one, other].map(|dir| (dir, Measured::default()));
    for _ in 0..runs {
        for (dir, measured) in &mut measured {
            let (store, name) = Store::split(dir).or_say("open the store")?;
            volt_run(&store, &name, measured)?;
            thread::sleep(pause);
        }
    }
    let [(_, one), (_, other)] = measured;
    Ok(breakdown(&one.steps, (&other.steps, beside)))
}

fn breakdown(steps: &Steps, other: (&Steps, &str)) -> Table {
    let label = |name: &str| match name {
        name if OPEN.contains(&name) => format!("{name} (once a snapshot)"),
        RESUME => "resume (part of the next)".to_owned(),
        name => name.to_owned(),
    };
    steps.table(label, other)
}
