//! Forks in processes of their own, as `volt-vmm fork` makes them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use volt_benches::process::Running;
use volt_benches::scratch::Scratch;
use volt_benches::table::Table;
use volt_benches::{OrSay, Result, built, programs};

use crate::held::{Host, unique_kib};
use crate::{Options, alive, guest, sequence};

/// At once: a parent has a socket for each until it runs.
const BATCH: usize = 100;

/// A VM in a process, and the program to fork it with.
struct Parent {
    volt_vmm: PathBuf,
    socket: PathBuf,
    running: Running,
}

/// The children that there are. Dropped, they are killed.
#[derive(Default)]
struct Children(Vec<(u32, PathBuf)>);

impl Parent {
    fn boot(options: &Options, scratch: &Scratch) -> Result<Self> {
        let volt_vmm = built::volt_vmm()?;
        let kernel = scratch.program("small-guest", programs::SMALL_GUEST)?;
        let socket = scratch.path("parent.sock");
        let mut run = Command::new(&volt_vmm);
        run.arg("run").arg("--kernel").arg(kernel).args(["--cmdline", &guest::cmdline(options)]);
        run.args([
            "--memory",
            &format!("{}M", options.memory_mib),
            "--irqchip",
            &options.irqchip.to_string(),
        ]);
        let mut running = Running::start(run.arg("--api-socket").arg(&socket))?;
        running.wait_for("ready")?;
        Ok(Self { volt_vmm, socket, running })
    }

    fn fork(&self, count: usize, directory: &Path, children: &mut Children) -> Result<()> {
        let mut fork = Command::new(&self.volt_vmm);
        fork.arg("fork").arg("--api-socket").arg(&self.socket).arg("--child-dir").arg(directory);
        let done = fork.args(["--count", &count.to_string()]).output().or_say("run volt-vmm fork")?;
        if !done.status.success() {
            return Err(String::from_utf8_lossy(&done.stderr).trim().to_owned());
        }
        for line in String::from_utf8_lossy(&done.stdout).lines() {
            let mut words = line.split(' ');
            let pid = words.next().and_then(|pid| pid.parse().ok()).ok_or("no process id")?;
            children.0.push((pid, words.next().ok_or("no socket")?.into()));
        }
        Ok(())
    }
}

impl Children {
    /// Whether all of them are there. A dead one's number may be another's soon; nothing here waits that
    /// long.
    fn check(&self) -> Result<()> {
        let gone = self.0.iter().find(|(pid, _)| !Path::new(&format!("/proc/{pid}/smaps_rollup")).exists());
        gone.map_or(Ok(()), |(pid, socket)| Err(format!("child {pid} at {} has ended", socket.display())))
    }

    fn end(&mut self) {
        for (pid, _) in self.0.drain(..) {
            kill(pid);
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.end();
    }
}

#[allow(unsafe_code)]
fn kill(pid: u32) {
    // SAFETY: sends a signal to a process that was started for this benchmark.
    unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
    while Path::new(&format!("/proc/{pid}")).exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Measures many at once.
///
/// # Errors
/// The host has no room for so many.
pub fn alive(options: &Options, scratch: &Scratch, table: &mut Table) -> Result<()> {
    let parent = Parent::boot(options, scratch)?;
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
    let unique = children.0.iter().map(|(pid, _)| unique_kib(*pid)).sum::<Result<u64>>()?;
    table.row(alive::row("forks, a process each", options.alive, unique.cast_signed(), taken));
    Ok(())
}

/// Measures many in sequence.
///
/// # Errors
/// One fails.
pub fn in_sequence(options: &Options, scratch: &Scratch, table: &mut Table) -> Result<()> {
    let parent = Parent::boot(options, scratch)?;
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
