//! Cost of a new generation for a restore: the same guest with VMGENID and without, on raw memory and on
//! packed memory that is filled on touch.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use volt_benches::first_byte::FirstByte;
use volt_benches::process::Running;
use volt_benches::scratch::Scratch;
use volt_benches::stats::{Times, milliseconds, percentiles};
use volt_benches::table::Table;
use volt_benches::{OrSay, Result, snapshots};
use volt_vmm::internal::timing;
use volt_vmm::{Console, RestoreOptions, Snapshot, Store};

/// Guest memory in MiB.
const MIB: u64 = 128;
/// How long a guest may take to its first byte.
const LIMIT: Duration = Duration::from_secs(10);
/// The step of the restore.
const STEP: &str = "generation";

/// A snapshot, and the times of its restores.
struct Subject {
    name: String,
    dir: PathBuf,
    total: Times,
    step: Times,
}

/// Measures the library, a run of each in turn.
///
/// # Errors
/// volt-vmm fails.
pub fn measure(volt_vmm: &Path, scratch: &Scratch, runs: usize, pause: Duration) -> Result<Table> {
    let mut subjects = Vec::new();
    for vmgenid in ["off", "on"] {
        let device = ["--vmgenid".to_owned(), vmgenid.to_owned()];
        let raw = snapshots::by_volt_vmm(volt_vmm, scratch, &format!("raw-{vmgenid}"), MIB, &device)?;
        let packed = scratch.path(&format!("packed-{vmgenid}"));
        let mut convert = Command::new(volt_vmm);
        convert.args(["snapshot", "convert", "--compress", "lz4"]).arg(&raw).arg(&packed);
        Running::start(&mut convert)?.wait()?;
        for (memory, dir) in [("raw", raw), ("packed", packed)] {
            let (name, total, step) =
                (format!("{memory}, vmgenid {vmgenid}"), Times::default(), Times::default());
            subjects.push(Subject { name, dir, total, step });
        }
    }
    subjects.sort_by_key(|subject| !subject.name.starts_with("raw"));
    for _ in 0..runs {
        for subject in &mut subjects {
            subject.restore()?;
            thread::sleep(pause);
        }
    }
    Ok(table(&subjects))
}

impl Subject {
    /// Opens the snapshot anew, so that no clone has fetched a chunk before.
    fn restore(&mut self) -> Result<()> {
        let (store, name) = Store::split(&self.dir).or_say("open the store")?;
        let snapshot = Snapshot::open(&store, &name).or_say("open the snapshot")?;
        let (first, told) = channel();
        let start = Instant::now();
        let (vm, steps) = timing::record(|| {
            let console = Console::to(FirstByte::new(first));
            snapshot.restore_with(RestoreOptions::default().console(console))
        });
        let _vm = vm.or_say("restore the snapshot")?;
        self.total.add(told.recv_timeout(LIMIT).or_say("hear from the guest")? - start);
        let step = steps.iter().find(|(name, _)| *name == STEP);
        self.step.add(step.map_or(Duration::ZERO, |(_, took)| *took));
        Ok(())
    }
}

fn table(subjects: &[Subject]) -> Table {
    let columns = [
        "call to first guest byte, ms",
        "runs",
        "min",
        "p50",
        "p90",
        "p99",
        "step, min",
        "step, p50",
        "step, p90",
    ];
    let mut table = Table::new(&columns);
    for Subject { name, total, step, .. } in subjects {
        let mut cells = vec![name.clone(), total.len().to_string()];
        cells.extend(percentiles(total));
        cells.extend([0, 50, 90].map(|percent| milliseconds(step.percentile(percent))));
        table.row(cells);
    }
    table
}
