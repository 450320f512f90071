//! Forks beside those of Firecracker.

use std::cell::RefCell;
use std::env;
use std::path::PathBuf;
use std::time::Instant;

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
use crate::vms::{CHILD, RUNNING, Vms};

/// The variable that names the program of Firecracker.
const VARIABLE: &str = "VOLT_PEER_FIRECRACKER";
const ABOUT: &str = "Firecracker with the same kernel, agent, image, memory and vCPUs, in turns with \
volt-vmm. Its root file system writes to memory, and it has no network. Its fork is a full snapshot in two \
files of the temporary directory, a new process, and a load with the backend `File`. The clone gets no \
entropy, time and name, and its workload is not frozen: volt-vmm does both. Times end with the command's \
first output at the agent's own client here.";
const PHASES: [&str; 4] = [
    "pause, snapshot, resume",
    "the child's process; the load, up to its answer",
    "the process starts",
    "its first output",
];

/// The tables, if the variable names a program.
pub fn of(vms: &Vms, scratch: &Scratch, options: &ImageOptions, runs: usize) -> Result<Option<String>> {
    let Some(program) = env::var_os(VARIABLE) else {
        return Ok(None);
    };
    // By an absolute path, as each process has a working directory of its own.
    let program = std::path::absolute(PathBuf::from(program)).or_say(VARIABLE)?;
    let disk = scratch.path("image.erofs");
    vms.to_end(["image", "export", &options.image, &disk.display().to_string()])?;
    let peer = Peer::start(program, scratch, options, &disk, vms.argv().to_vec())?;
    let (peer, phases) = (RefCell::new(peer), RefCell::new(Phases::new(&[], &PHASES)));
    let contenders = vec![
        Contender::new("`exec`, volt-vmm", || {
            first_output(&vms.vsock(RUNNING), vms.argv(), Instant::now()).map(|[_, wrote]| wrote)
        }),
        Contender::new("fork and `exec`, volt-vmm", || {
            let start = Instant::now();
            vms.fork(RUNNING)?;
            let [_, wrote] = first_output(&vms.vsock(CHILD), vms.argv(), start)?;
            vms.end_child().map(|()| wrote)
        }),
        Contender::new("`exec`, Firecracker", || peer.borrow().exec()),
        Contender::new("fork and `exec`, Firecracker", || {
            let ends = peer.borrow_mut().fork_and_exec()?;
            phases.borrow_mut().add(ends);
            Ok(ends[3])
        }),
    ];
    let results = in_turn(contenders, runs, PAUSE)?;
    let mut table =
        Table::new(&["call to first output, ms", "min", "p50", "p90", "p99", "p50 more than its `exec`"]);
    let of_exec = |number: usize| &results[number / 2 * 2].1;
    let difference = |number: usize| more(&results[number].1, of_exec(number), 50);
    for (number, (name, times)) in results.iter().enumerate() {
        let cells = [name.clone()].into_iter().chain(percentiles(times));
        table.row(cells.chain([format!("{:.1}", difference(number))]));
    }
    let share = difference(1) / difference(3);
    let phases = phases.into_inner().table("a fork and a command in the clone, Firecracker");
    Ok(Some(format!(
        "{ABOUT}\n\n{table}\nThe difference of volt-vmm is {share:.2} of Firecracker's.\n\n{phases}"
    )))
}
