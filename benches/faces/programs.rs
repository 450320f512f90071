//! The programs with an API, started at a socket.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use volt_benches::api::{Connection, SocketDirectory, request};
use volt_benches::process::Running;
use volt_benches::scratch::Scratch;
use volt_benches::snapshots::BothForms;
use volt_benches::{OrSay, Result, programs};

/// Longest wait for a guest's first byte, in seconds.
const LIMIT: i64 = 10;

/// See the module.
pub struct Programs {
    pub volt_vmm: PathBuf,
    firecracker: PathBuf,
    answerer: PathBuf,
    /// Nothing else appears in it.
    sockets: SocketDirectory,
}

/// A program that listens at a socket.
#[derive(Clone, Copy)]
pub enum Program {
    /// The floor.
    Answerer,
    /// `volt-vmm --api-socket`
    VoltVmm,
    /// The same program by Firecracker's command line.
    Firecracker,
}

/// A process that serves its API.
pub struct Serving {
    pub running: Running,
    pub api: Connection,
    /// The time of exec.
    pub started: Instant,
}

impl Programs {
    pub fn new(scratch: &Scratch, volt_vmm: PathBuf) -> Result<Self> {
        let volt_vmm = volt_vmm.canonicalize().or_say(&format!("find {}", volt_vmm.display()))?;
        let firecracker = scratch.path("firecracker");
        symlink(&volt_vmm, &firecracker).or_say("link firecracker to volt-vmm")?;
        let sockets = scratch.path("sockets");
        fs::create_dir(&sockets).or_say("make a directory of sockets")?;
        let sockets = SocketDirectory::watch(sockets)?;
        let answerer = scratch.program("answerer", programs::ANSWERER)?;
        Ok(Self { volt_vmm, firecracker, answerer, sockets })
    }

    /// The command that serves an API at `socket`, and as its clients start it.
    pub fn command(&self, program: Program, socket: &Path) -> Command {
        let (program, arguments): (_, &[&str]) = match program {
            Program::Answerer => (&self.answerer, &[]),
            Program::VoltVmm => (&self.volt_vmm, &["--api-socket"]),
            Program::Firecracker => (&self.firecracker, &["--id", "anonymous-instance", "--api-sock"]),
        };
        let mut command = Command::new(program);
        command.args(arguments).arg(socket);
        command
    }

    /// Starts a program, and connects to it as soon as it listens.
    ///
    /// # Errors
    /// It does not start, or does not listen.
    pub fn start(&self, program: Program) -> Result<Serving> {
        let socket = self.socket();
        // A process that was killed has left it.
        let _ = fs::remove_file(&socket);
        self.serve(&mut self.command(program, &socket), &socket)
    }

    /// Starts a command that serves an API at a socket of [`Programs::socket_of`], and connects to it.
    ///
    /// # Errors
    /// As [`Programs::start`].
    pub fn serve(&self, command: &mut Command, socket: &Path) -> Result<Serving> {
        let started = Instant::now();
        let running = Running::start(command)?;
        let api = self.sockets.connect(socket)?;
        Ok(Serving { running, api, started })
    }

    /// The socket at which [`Programs::start`] starts programs.
    pub fn socket(&self) -> PathBuf {
        self.socket_of("started")
    }

    /// A socket for a process of this name.
    pub fn socket_of(&self, name: &str) -> PathBuf {
        self.sockets.socket(name)
    }
}

/// The request of a client of Firecracker that loads a snapshot of two files and resumes its guest.
pub fn load_request(snapshot: &BothForms) -> Vec<u8> {
    let body = serde_json::json!({
        "snapshot_path": snapshot.state,
        "mem_backend": { "backend_type": "File", "backend_path": snapshot.memory },
        "resume_vm": true,
    });
    request("PUT", "/snapshot/load", &body.to_string())
}

/// Waits for the first byte of the guest that a request has loaded.
///
/// # Errors
/// The request is refused, or the guest says nothing.
pub fn first_byte(running: &mut Running, api: &mut Connection) -> Result<()> {
    let output = running.output().ok_or("a process without a pipe")?;
    let limit = Timespec { tv_sec: LIMIT, tv_nsec: 0 };
    let mut both = [PollFd::new(output, PollFlags::IN), PollFd::new(api.stream(), PollFlags::IN)];
    poll(&mut both, Some(&limit)).or_say("wait for a guest")?;
    if both[0].revents().is_empty() {
        // The answer may come first; it says whether a byte will come.
        api.read_answer()?;
        let output = running.output().ok_or("a process without a pipe")?;
        let mut output = [PollFd::new(output, PollFlags::IN)];
        if poll(&mut output, Some(&limit)).or_say("wait for a guest")? == 0 {
            return Err("the guest says nothing".to_owned());
        }
    }
    running.first_byte()
}
