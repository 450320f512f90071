//! VMs of one image, with directories of this benchmark's own.

use std::fs::{self, DirBuilder};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use volt_benches::scratch::Scratch;
use volt_benches::{OrSay, Result};

use crate::faults::taken;

/// The VM that has run for a while.
pub const RUNNING: &str = "running";
/// The child of a fork.
const CHILD: &str = "child";
/// The VM whose faults are counted.
const COUNTED: &str = "counted";
/// The main process of a VM that is there for other commands.
const SLEEP: [&str; 2] = ["sleep", "1000000"];

/// See the module. VMs that run are killed on drop.
pub struct Vms {
    program: PathBuf,
    environment: Vec<(&'static str, PathBuf)>,
    /// The directory of warm snapshots.
    warm: PathBuf,
    /// Options of `run`, and the image.
    image: Vec<String>,
    command: Vec<String>,
}

impl Vms {
    /// Makes the directories.
    pub fn new(scratch: &Scratch, program: PathBuf, guest: &Path) -> Result<Self> {
        let of_own = [("VOLT_RUN_DIR", "run"), ("XDG_DATA_HOME", "data"), ("HOME", "home")];
        let mut environment = vec![("VOLT_GUEST", guest.to_owned())];
        for (variable, name) in of_own {
            let path = scratch.path(name);
            DirBuilder::new().mode(0o700).create(&path).or_say("make a directory")?;
            environment.push((variable, path));
        }
        let warm = scratch.path("data/volt-vmm/warm");
        Ok(Self { program, environment, warm, image: Vec::new(), command: Vec::new() })
    }

    /// Names the image, and what runs in its VMs.
    pub fn of_image(mut self, image: &str, options: &[String], command: &[String]) -> Self {
        self.image = options.iter().cloned().chain([image.to_owned()]).collect();
        self.command = command.to_vec();
        self
    }

    fn command<'w>(&self, words: impl IntoIterator<Item = &'w str>) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).envs(self.environment.iter().cloned()).stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    fn to_end(&self, words: &[&str]) -> Result<()> {
        let output = self.command(words.iter().copied()).output().or_say("run volt-vmm")?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("{}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr))),
        }
    }

    /// Runs a command to its end. Returns the time to the first byte of its output.
    fn first_byte<'w>(&self, words: impl IntoIterator<Item = &'w str>) -> Result<Duration> {
        let mut command = self.command(words);
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

    /// Stores the image.
    pub fn load(&self, archive: &Path) -> Result<()> {
        self.to_end(&["image", "load", &archive.display().to_string()])
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
        let words = ["run", "--rm"].into_iter().chain(options.iter().copied());
        self.first_byte(words.chain(self.image.iter().chain(&self.command).map(String::as_str)))
    }

    /// Starts the VM that goes on.
    pub fn start_one(&self) -> Result<()> {
        self.start(RUNNING)
    }

    fn start(&self, name: &str) -> Result<()> {
        let words = ["run", "--detach", "--name", name].into_iter();
        let words = words.chain(self.image.iter().map(String::as_str)).chain(SLEEP);
        self.to_end(&words.collect::<Vec<_>>())
    }

    /// Removes the working sets of warm snapshots.
    pub fn forget_working_sets(&self) -> Result<()> {
        let snapshots = fs::read_dir(&self.warm).or_say("list warm snapshots")?.flatten();
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
        self.start(COUNTED)?;
        let acted = act(COUNTED, before);
        self.to_end(&["rm", "--force", COUNTED])?;
        acted
    }

    /// Calls `act` for a fork's child, with the count of faults from before.
    pub fn in_child<T>(&self, act: impl FnOnce(&str, u64) -> Result<T>) -> Result<T> {
        let before = taken().unwrap_or(0);
        self.fork()?;
        let acted = act(CHILD, before);
        self.to_end(&["rm", "--force", CHILD])?;
        acted
    }

    fn fork(&self) -> Result<()> {
        self.to_end(&["fork", "--quiesce", "--require-agent", "--name", CHILD, RUNNING])
    }

    /// Runs the command in a VM that runs.
    pub fn exec(&self, vm: &str) -> Result<Duration> {
        self.first_byte(["exec", vm].into_iter().chain(self.command.iter().map(String::as_str)))
    }

    /// Forks the VM that runs, and runs the command in the child.
    pub fn fork_and_exec(&self) -> Result<Duration> {
        let start = Instant::now();
        self.fork()?;
        let forked = start.elapsed();
        let took = forked + self.exec(CHILD)?;
        self.to_end(&["rm", "--force", CHILD])?;
        Ok(took)
    }
}

impl Drop for Vms {
    fn drop(&mut self) {
        // The end of the benchmark reports nothing any more.
        let _ = self.to_end(&["rm", "--force", RUNNING, COUNTED, CHILD]);
    }
}
