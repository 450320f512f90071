//! Forks beside those of Firecracker.

use std::cell::RefCell;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use volt_benches::image_host::ImageOptions;
use volt_benches::scratch::Scratch;
use volt_benches::stats::{more, percentiles};
use volt_benches::table::Table;
use volt_benches::turns::{Contender, in_turn};
use volt_benches::{OrSay, Result};

use crate::PAUSE;
use crate::client::first_output;
use crate::peer::Peer;
use crate::phases::Phases;
use crate::vms::{CHILD, PLAIN, QUIET, RUNNING, Vms};

/// The variable that names the program of Firecracker.
const VARIABLE: &str = "VOLT_PEER_FIRECRACKER";
const ABOUT: &str = "It runs the same kernel, agent, image, memory and vCPUs, in turns with volt-vmm. Its \
root file system writes to memory, and it has no network. Other options of `run` are volt-vmm's alone. \
Its fork is a snapshot, a new process, and a load with the backend `File`. The snapshot writes the pages \
that changed (`Diff`) into the memory file of the snapshot before it, in /dev/shm. No agent freezes the \
workload, or gives the clone time, name and entropy, as with a quiet fork of volt-vmm. Any fork of \
volt-vmm starts a process for its client; Firecracker's API is asked directly. Times end with the \
command's first output at the agent's own client here.";
const PHASES: [&str; 4] = [
    "pause, snapshot, resume",
    "the child's process; the load, up to its answer",
    "the process starts",
    "its first output",
];

/// The tables, if the variable names a program, or why there are none.
pub fn of(vms: &Vms, options: &ImageOptions, runs: usize) -> Option<String> {
    let program = env::var_os(VARIABLE)?;
    // An absolute path, because each process of it has a working directory of its own.
    let tables = std::path::absolute(PathBuf::from(program)).or_say(VARIABLE);
    let tables = tables.and_then(|program| measured(vms, options, runs, program));
    Some(tables.unwrap_or_else(|error| format!("Firecracker ({VARIABLE}) was not measured: {error}\n")))
}

/// The first line that a program prints of its version.
fn version(program: &Path) -> Result<String> {
    let output =
        Command::new(program).arg("--version").output().or_say(&format!("run {}", program.display()));
    let text = String::from_utf8_lossy(&output?.stdout).into_owned();
    text.lines().next().map(str::to_owned).ok_or_else(|| "it prints no version".to_owned())
}

/// Forks the VM that runs, and runs the command in the child. Returns the time up to its first output.
fn fork_and_exec(vms: &Vms, kind: &[&str]) -> Result<Duration> {
    let start = Instant::now();
    vms.fork(kind, RUNNING)?;
    let [_, wrote] = first_output(&vms.vsock(CHILD), vms.argv(), start)?;
    vms.end_child().map(|()| wrote)
}

fn measured(vms: &Vms, options: &ImageOptions, runs: usize, program: PathBuf) -> Result<String> {
    let version = version(&program)?;
    // Firecracker writes a snapshot through to the disk, if it is on one.
    let scratch = Scratch::in_memory()?;
    let disk = scratch.path("image.erofs");
    vms.to_end(["image", "export", &options.image, &disk.display().to_string()])?;
    let peer = Peer::start(program, &scratch, options, &disk, vms.argv().to_vec())?;
    let ends = RefCell::new(Vec::new());
    let contenders = vec![
        Contender::new("`exec`, volt-vmm", || {
            first_output(&vms.vsock(RUNNING), vms.argv(), Instant::now()).map(|[_, wrote]| wrote)
        }),
        Contender::new("fork and `exec`, volt-vmm", || fork_and_exec(vms, &PLAIN)),
        Contender::new("quiet fork and `exec`, volt-vmm", || fork_and_exec(vms, &QUIET)),
        Contender::new("`exec`, Firecracker", || peer.exec()),
        Contender::new("fork and `exec`, Firecracker", || {
            let fork = peer.fork_and_exec()?;
            let wrote = fork.wrote;
            ends.borrow_mut().push([fork.captured, fork.loaded, fork.begun, wrote]);
            Ok(wrote)
        }),
    ];
    let results = in_turn(contenders, runs, PAUSE)?;
    let mut table =
        Table::new(&["call to first output, ms", "min", "p50", "p90", "p99", "p50 more than its `exec`"]);
    let more_than = |number: usize, exec: usize| more(&results[number].1, &results[exec].1, 50);
    for (number, (name, times)) in results.iter().enumerate() {
        let exec = if number < 3 { 0 } else { 3 };
        let cells = [name.clone()].into_iter().chain(percentiles(times));
        table.row(cells.chain([format!("{:.1}", more_than(number, exec))]));
    }
    let share = more_than(1, 0) / more_than(4, 3);
    let mut phases = Phases::new(&[], &PHASES);
    // The first fork counts in no table.
    ends.into_inner().into_iter().skip(1).for_each(|ends| phases.add(ends));
    let phases = phases.table("a fork and a command in the clone, Firecracker");
    Ok(format!(
        "{version} is the peer ({VARIABLE}). {ABOUT}\n\n{table}\nThe difference of a fork of volt-vmm, one \
         that is not quiet, is {share:.2} of Firecracker's.\n\n{phases}"
    ))
}
