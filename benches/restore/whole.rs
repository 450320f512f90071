//! The whole process: from exec to the resumed guest's first byte on standard output.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use volt_benches::chart::Chart;
use volt_benches::scratch::Scratch;
use volt_benches::snapshots;
use volt_benches::stats::{Times, percentiles, ratio};
use volt_benches::table::Table;
use volt_benches::{Result, programs};

use crate::contender::{self, Contender};
use crate::subject::Subject;

/// Measures all of them, a run of each in turn.
///
/// # Errors
/// One of them fails.
pub fn measure(
    subjects: &[Subject],
    volt_vmm: &Path,
    scratch: &Scratch,
    runs: usize,
    qemu: Option<(usize, u64, &(PathBuf, PathBuf))>,
    pause: Duration,
) -> Result<(Table, Chart)> {
    let empty = scratch.program("empty", programs::EMPTY)?;
    let floors = [
        ("floor", scratch.program("floor", programs::FLOOR)?),
        ("floor on musl", scratch.program("floor-musl", programs::FLOOR_MUSL)?),
    ];
    let mut contenders = vec![Contender::new("an empty static program", Command::new(empty), runs)];
    for subject in subjects {
        for (name, program) in &floors {
            let mut command = Command::new(program);
            command.arg(&subject.digest_file).arg(subject.memory_file());
            contenders.push(Contender::new(&format!("{name}, {} MiB", subject.mib), command, runs));
        }
        let mut command = Command::new(volt_vmm);
        command.arg("--restore").arg(&subject.dir);
        contenders.push(Contender::new(&format!("volt-vmm --restore, {} MiB", subject.mib), command, runs));
    }
    if let Some((runs, mib, (kernel, saved))) = qemu {
        let command = snapshots::qemu_incoming(kernel, mib, saved);
        contenders.push(Contender::new(&format!("QEMU microvm -incoming, {mib} MiB"), command, runs));
    }
    contender::run_in_turn(&mut contenders, pause)?;
    Ok((table(&contenders), chart(&contenders, subjects)))
}

/// The medians over the size of memory.
fn chart(contenders: &[Contender], subjects: &[Subject]) -> Chart {
    let sizes = subjects.iter().map(|subject| subject.mib.to_string()).collect();
    let mut chart = Chart::new("exec to first guest byte", ("guest memory, MiB", sizes), "p50, ms");
    for name in ["volt-vmm --restore", "floor", "floor on musl"] {
        let of = |subject: &Subject| {
            let name = format!("{name}, {} MiB", subject.mib);
            let found = contenders.iter().find(|contender| contender.name == name);
            found.map_or(0.0, |contender| contender.times.percentile(50).as_secs_f64() * 1e3)
        };
        chart.line(name, subjects.iter().map(of).collect());
    }
    chart
}

fn table(contenders: &[Contender]) -> Table {
    let columns = [
        "exec to first guest byte, ms",
        "runs",
        "min",
        "p50",
        "p90",
        "p99",
        "p50 / floor",
        "min / floor",
        "p50 / floor on musl",
    ];
    let mut table = Table::new(&columns);
    let mut floors: Vec<&Times> = Vec::new();
    for Contender { name, times, .. } in contenders {
        let mut cells = vec![name.clone(), times.len().to_string()];
        cells.extend(percentiles(times));
        if name.starts_with("floor") {
            floors.push(times);
        } else if let [floor, on_musl] = floors[..] {
            cells.push(format!("{:.2}", ratio(times.percentile(50), floor.percentile(50))));
            cells.push(format!("{:.2}", ratio(times.min(), floor.min())));
            cells.push(format!("{:.2}", ratio(times.percentile(50), on_musl.percentile(50))));
            floors.clear();
        }
        table.row(cells);
    }
    table
}
