//! From the request that loads a snapshot to the guest's first byte, and the same by the library.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use volt_benches::api::{Connection, request};
use volt_benches::first_byte::FirstByte;
use volt_benches::snapshots::BothForms;
use volt_benches::turns::{Contender, Results, in_turn};
use volt_benches::{OrSay, Result};
use volt_vmm::{Console, RestoreOptions, Snapshot, SnapshotFiles};

use crate::programs::{Program, Programs, first_byte, load_request};

/// Longest time to a guest's first byte.
const LIMIT: Duration = Duration::from_secs(10);
/// Time in which a process that has started comes to rest.
const SETTLED: Duration = Duration::from_millis(10);

/// Measures both, with the snapshot opened before and within the time.
///
/// # Errors
/// A guest does not start.
pub fn measure(programs: &Programs, snapshot: &BothForms, runs: usize, pause: Duration) -> Result<Results> {
    let files = SnapshotFiles::new(&snapshot.state, &snapshot.memory);
    let load = load_request(snapshot);
    let open = || Snapshot::open_files(&files).or_say("open the snapshot");
    let opened = open()?;
    let through = |name: &str, is_fresh: bool| {
        let load = &load;
        Contender::new(name, move || load_once(programs, load, is_fresh))
    };
    let contenders = vec![
        Contender::new("Snapshot::restore", || restored(|| Ok(&opened))),
        Contender::new("Snapshot::open_files and restore", || restored(open)),
        through("PUT /snapshot/load, one connection", false),
        through("PUT /snapshot/load, a new connection", true),
    ];
    in_turn(contenders, runs, pause)
}

/// Restores by the library. Returns the time from the call to the guest's first byte.
fn restored<S: std::borrow::Borrow<Snapshot>>(snapshot: impl FnOnce() -> Result<S>) -> Result<Duration> {
    let (first, told) = channel();
    let start = Instant::now();
    let snapshot = snapshot()?;
    let options = RestoreOptions::default().console(Console::to(FirstByte::new(first)));
    let vm = snapshot.borrow().restore_with(options).or_say("restore the snapshot")?;
    let took = told.recv_timeout(LIMIT).or_say("hear from the guest")? - start;
    drop(vm);
    Ok(took)
}

/// Starts a process and, once it rests, has it load the snapshot. Returns the time from the request, or from
/// its connection, to the guest's first byte.
fn load_once(programs: &Programs, load: &[u8], is_fresh: bool) -> Result<Duration> {
    let mut serving = programs.start(Program::Firecracker)?;
    serving.api.ask(&request("GET", "/", ""))?;
    thread::sleep(SETTLED);
    let start = Instant::now();
    if is_fresh {
        serving.api = Connection::open(&programs.socket())?;
    }
    serving.api.send(load)?;
    first_byte(&mut serving.running, &mut serving.api)?;
    Ok(start.elapsed())
}
