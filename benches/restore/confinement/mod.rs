//! Cost of confinement for a restore, by exec and in a process that waits, and of its parts alone.

mod child;
mod parts;
mod targets;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use volt_benches::scratch::Scratch;
use volt_benches::stats::{Times, more, percentiles};
use volt_benches::table::Table;
use volt_benches::{OrSay, Result, programs};

use crate::contender::{self, Contender};
use crate::subject::Subject;
use crate::worker::LoadRequest;

/// Guest memory in MiB.
const MIB: u64 = 64;

/// Names of contenders, by which others are compared with them.
const FLOOR: &str = "floor on musl";
const PLAIN: &str = "restore, no option";
const OFF: &str = "restore --confine off";
const DEFAULT: &str = "restore --confine default";
const AGAIN: &str = "the same again";
const STRICT: &str = "restore --confine strict";
const WORKER_OFF: &str = "waiting, --confine off";
const WORKER_DEFAULT: &str = "waiting, --confine default";

/// Options of `volt-vmm restore`, by the name of the contender.
const RESTORES: [(&str, &[&str]); 6] = [
    (OFF, &["--confine", "off"]),
    (AGAIN, &["--confine", "off"]),
    ("restore --no-seccomp", &["--no-seccomp"]),
    (DEFAULT, &["--confine", "default"]),
    (PLAIN, &[]),
    (STRICT, &["--confine", "strict"]),
];
/// Options of a process that waits, by the name of the contender.
const WORKERS: [(&str, &[&str]); 5] = [
    (WORKER_OFF, &["--confine", "off"]),
    (AGAIN, &["--confine", "off"]),
    ("waiting, --no-seccomp", &["--no-seccomp"]),
    (WORKER_DEFAULT, &["--confine", "default"]),
    ("waiting, --confine strict", &["--confine", "strict"]),
];

/// Results.
pub struct Cost {
    /// Times of restores, and their differences to one without confinement.
    pub restores: Table,
    /// Targets, and whether each is met.
    pub targets: Table,
    /// Parts of strict confinement.
    pub parts: Table,
    /// Parts of strict confinement that the host refuses, in the words of volt-vmm. Empty without any.
    pub refused: String,
}

/// Measures all of them, a run of each in turn.
///
/// # Errors
/// volt-vmm or the floor fails.
pub fn measure(
    subjects: &[Subject],
    volt_vmm: &Path,
    scratch: &Scratch,
    runs: usize,
    pause: Duration,
) -> Result<Cost> {
    let parts = parts::measure(runs, pause);
    let made;
    let subject = match subjects.iter().find(|subject| subject.mib == MIB) {
        Some(subject) => subject,
        None => {
            made = Subject::make(volt_vmm, scratch, MIB)?;
            &made
        }
    };
    // Each strict process says what the host refuses.
    let log = scratch.path("strict.log");
    let file = File::create(&log).or_say("create a log")?;
    let mut contenders = contenders(subject, volt_vmm, scratch, runs, &file)?;
    let run = contender::run_in_turn(&mut contenders, pause);
    let said = fs::read_to_string(&log).or_say("read a log")?;
    run.map_err(|error| format!("{error}\n{said}"))?;
    Ok(Cost {
        restores: table(&contenders),
        targets: targets::table(&contenders),
        parts,
        refused: said.lines().next().unwrap_or_default().to_owned(),
    })
}

fn contenders(
    subject: &Subject,
    volt_vmm: &Path,
    scratch: &Scratch,
    runs: usize,
    log: &File,
) -> Result<Vec<Contender>> {
    let mut floor = Command::new(scratch.program("floor-musl", programs::FLOOR_MUSL)?);
    floor.arg(&subject.digest_file).arg(subject.memory_file());
    let mut contenders = vec![Contender::new(FLOOR, floor, runs)];
    let mut add = |name: &str, mut command: Command, options: &[&str], request: Option<LoadRequest>| {
        command.args(options);
        let is_strict = options.contains(&"strict");
        if is_strict {
            command.stderr(log.try_clone().or_say("share a log")?);
        }
        let mut contender = Contender::new(name, command, runs);
        if let Some(request) = request {
            contender = contender.loading(request);
        }
        // A keeper that is killed leaves its control group.
        contenders.push(if is_strict { contender.asked_to_end() } else { contender });
        Result::Ok(())
    };
    for (name, options) in RESTORES {
        let mut command = Command::new(volt_vmm);
        command.arg("restore").arg(&subject.dir);
        add(name, command, options, None)?;
    }
    for (name, options) in WORKERS {
        let socket = scratch.path("worker.sock");
        let mut command = Command::new(volt_vmm);
        command.arg("--api-socket").arg(&socket).args(["--prewarm", &format!("{MIB}M")]);
        add(name, command, options, Some(LoadRequest::new(socket, &subject.dir)))?;
    }
    Ok(contenders)
}

fn table(contenders: &[Contender]) -> Table {
    let columns = [
        "to first guest byte, ms",
        "runs",
        "min",
        "p50",
        "p90",
        "p99",
        "min more than off",
        "p50 more",
        "p90 more",
        "p99 more",
    ];
    let mut table = Table::new(&columns);
    let mut off: Option<&Times> = None;
    for Contender { name, times, .. } in contenders {
        let mut cells = vec![name.clone(), times.len().to_string()];
        cells.extend(percentiles(times));
        if name == OFF || name == WORKER_OFF {
            off = Some(times);
        } else if let Some(off) = off {
            cells.extend([0, 50, 90, 99].map(|percent| format!("{:.3}", more(times, off, percent))));
        }
        table.row(cells);
    }
    table
}
