//! VMs of one image, with directories of this benchmark's own.

use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use volt_benches::image_host::ImageHost;
use volt_benches::{OrSay, Result};

use crate::client::first_output;
use crate::faults::taken;

/// The VM that has run for a while.
pub const RUNNING: &str = "running";
/// The VM whose log has the phases of its forks.
pub const LOGGED: &str = "logged";
/// The child of a fork.
pub const CHILD: &str = "child";
/// A fork that leaves the guest as it is.
pub const PLAIN: [&str; 0] = [];
/// A fork for which the parent's agent freezes the workload, and the child's agent wakes it.
pub const QUIET: [&str; 2] = ["--quiesce", "--require-agent"];
/// The VM whose faults are counted.
const COUNTED: &str = "counted";
/// Time in which the first child keeps its working set, behind its first command.
const KEEPS: Duration = Duration::from_millis(500);
/// The main process of a VM that is there for other commands.
pub const SLEEP: [&str; 2] = ["sleep", "1000000"];

/// See the module. VMs that run are killed on drop.
pub struct Vms {
    host: ImageHost,
    /// Options of `run`, and the image.
    image: Vec<OsString>,
    command: Vec<String>,
}

impl Vms {
    /// Names the VMs' options and image, and what runs in them.
    pub fn new(host: ImageHost, image: Vec<OsString>, command: Vec<String>) -> Self {
        Self { host, image, command }
    }

    /// The command.
    pub fn argv(&self) -> &[String] {
        &self.command
    }

    /// The unix socket of a VM's vsock.
    pub fn vsock(&self, vm: &str) -> PathBuf {
        self.host.vsock(vm)
    }

    /// Runs a command to its end. Returns the time to the first byte of its output.
    fn first_byte<W: Into<OsString>>(&self, words: impl IntoIterator<Item = W>) -> Result<Duration> {
        let mut command = self.host.command(words);
        let start = Instant::now();
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().or_say("run volt-vmm")?;
        let mut first = [0];
        let read = child.stdout.as_mut().expect("it is a pipe").read(&mut first);
        let took = start.elapsed();
        let output = child.wait_with_output().or_say("wait for volt-vmm")?;
        match read {
            Ok(1) if output.status.success() => Ok(took),
            _ => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr))),
        }
    }

    /// Runs a command to its end, and returns its output as it is.
    pub fn bytes<W: Into<OsString>>(&self, words: impl IntoIterator<Item = W>) -> Result<Vec<u8>> {
        self.host.bytes(words)
    }

    /// Runs a command to its end.
    pub fn to_end<W: Into<OsString>>(&self, words: impl IntoIterator<Item = W>) -> Result<()> {
        self.host.output(words).map(drop)
    }

    /// Runs the command in a new VM, which logs its phases to a file. Returns the time of the call, that to
    /// the first byte of output, and the log.
    pub fn run_with_log(&self, log: &Path) -> Result<(SystemTime, Duration, String)> {
        let called = SystemTime::now();
        let took = self.run(&["--log-level", "debug", "--log", &log.display().to_string()])?;
        let text = fs::read_to_string(log).or_say("read the log of a VM")?;
        fs::remove_file(log).or_say("remove the log of a VM")?;
        Ok((called, took, text))
    }

    /// Runs the command in a new VM.
    pub fn run(&self, options: &[&str]) -> Result<Duration> {
        let words = ["run", "--rm"].iter().chain(options).map(OsString::from);
        self.first_byte(
            words.chain(self.image.iter().cloned()).chain(self.command.iter().map(OsString::from)),
        )
    }

    /// Starts the VM that goes on.
    pub fn start_one(&self) -> Result<()> {
        self.start(RUNNING, &[])
    }

    fn start(&self, name: &str, options: &[&str]) -> Result<()> {
        let words = ["run", "--detach", "--name", name]
            .into_iter()
            .chain(options.iter().copied())
            .map(OsString::from);
        self.to_end(words.chain(self.image.iter().cloned()).chain(SLEEP.map(OsString::from)))
    }

    /// Starts the VM whose forks log their phases to a file, and runs the command there.
    pub fn start_logged(&self, log: &Path) -> Result<()> {
        self.start(LOGGED, &["--log-level", "debug", "--log", &log.display().to_string()])?;
        self.exec(LOGGED).map(drop)
    }

    /// Forks that VM, and has the child's agent run the command. Returns the time of the call, those from it
    /// to the end of `fork`, to the start of the process and to its first output, and the log.
    pub fn fork_with_log(&self, log: &Path) -> Result<(SystemTime, [Duration; 3], String)> {
        let read = || fs::read_to_string(log).or_say("read the log of a VM");
        let before = read()?.len();
        let (called, start) = (SystemTime::now(), Instant::now());
        self.fork(&QUIET, LOGGED)?;
        let forked = start.elapsed();
        let [begun, wrote] = first_output(&self.vsock(CHILD), &self.command, start)?;
        self.end_child()?;
        Ok((called, [forked, begun, wrote], read()?.split_off(before)))
    }

    /// Removes the working sets of warm snapshots.
    pub fn forget_working_sets(&self) -> Result<()> {
        let snapshots = fs::read_dir(self.host.data("warm")).or_say("list warm snapshots")?.flatten();
        for snapshot in snapshots {
            match fs::remove_file(snapshot.path().join("working-set")) {
                Err(error)
                    if error.kind() != ErrorKind::NotFound && error.kind() != ErrorKind::NotADirectory =>
                {
                    return Err(format!("remove a working set: {error}"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Runs the command in a new VM of a snapshot without a working set. The run leaves one.
    pub fn run_without_working_set(&self) -> Result<Duration> {
        self.forget_working_sets()?;
        self.run(&[])
    }

    /// Calls `act` for a VM of a warm start, with the count of faults from before.
    pub fn in_warm_vm<T>(&self, act: impl FnOnce(&str, u64) -> Result<T>) -> Result<T> {
        let before = taken().unwrap_or(0);
        self.start(COUNTED, &[])?;
        let acted = act(COUNTED, before);
        self.to_end(["rm", "--force", COUNTED])?;
        acted
    }

    /// Calls `act` for a fork's child, with the count of faults from before.
    pub fn in_child<T>(&self, act: impl FnOnce(&str, u64) -> Result<T>) -> Result<T> {
        let before = taken().unwrap_or(0);
        self.fork(&QUIET, RUNNING)?;
        let acted = act(CHILD, before);
        self.end_child()?;
        acted
    }

    /// Ends the child, once it can have kept its working set.
    pub fn end_child(&self) -> Result<()> {
        thread::sleep(KEEPS);
        self.to_end(["rm", "--force", CHILD])
    }

    /// Forks a VM by a kind of fork, [`PLAIN`] or [`QUIET`].
    pub fn fork(&self, kind: &[&str], parent: &str) -> Result<()> {
        self.to_end([&["fork", "--name", CHILD], kind, &[parent]].concat())
    }

    /// Runs the command in a VM that runs.
    pub fn exec(&self, vm: &str) -> Result<Duration> {
        self.first_byte(["exec", vm].into_iter().chain(self.command.iter().map(String::as_str)))
    }

    /// Forks the VM that runs, and runs the command in the child.
    pub fn fork_and_exec(&self, kind: &[&str]) -> Result<Duration> {
        let start = Instant::now();
        self.fork(kind, RUNNING)?;
        let forked = start.elapsed();
        let took = forked + self.exec(CHILD)?;
        self.end_child()?;
        Ok(took)
    }
}

impl Drop for Vms {
    fn drop(&mut self) {
        // The end of the benchmark reports nothing any more.
        let _ = self.to_end(["rm", "--force", RUNNING, LOGGED, COUNTED, CHILD]);
    }
}
