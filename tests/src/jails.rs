//! Jails of `volt-vmm jailer`, in a directory of the test's own.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::fs::{AtFlags, CWD, chownat};
use rustix::process::{Gid, Pid, Signal, Uid, kill_process};

use crate::program::binary;
use crate::{Scratch, output, small_guest, wait_until};

/// The user of a jail.
pub const USER: u32 = 61_234;
/// The group of a jail.
pub const GROUP: u32 = 61_235;
/// The name of the jail's VM.
pub const ID: &str = "jail-1";

/// Lines that a jailed guest writes to its serial port.
pub type SerialLines = Lines<BufReader<ChildStdout>>;

/// A directory of jails, with the files of one jail.
#[derive(Debug)]
pub struct Jails {
    scratch: Scratch,
    /// The user and the group of the jail.
    owner: (u32, u32),
}

impl Jails {
    /// Creates the directory of the jail's root, with the small guest in it.
    ///
    /// # Panics
    /// The files cannot be made. This holds for the functions below, too.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it makes files")]
    pub fn new() -> Self {
        Self::of(USER, GROUP)
    }

    /// Creates the same for a jail of this user and group.
    #[must_use]
    pub fn of(user: u32, group: u32) -> Self {
        let jails = Self { scratch: Scratch::new(), owner: (user, group) };
        fs::create_dir_all(jails.root()).expect("make the jail's root");
        fs::copy(small_guest(), jails.root().join("guest.elf")).expect("copy the guest");
        jails
    }

    /// Returns the directory of all jails.
    #[must_use]
    pub fn base(&self) -> &Path {
        self.scratch.directory()
    }

    /// Returns the root directory of the jail.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.base().join(binary().file_name().expect("a name")).join(ID).join("root")
    }

    /// Returns the path that a file of the jail has outside.
    #[must_use]
    pub fn path(&self, inside: &str) -> PathBuf {
        self.root().join(inside.trim_start_matches('/'))
    }

    /// Gives a file or a directory in the jail, with all in it, to the jail's user.
    pub fn give(&self, inside: &str) {
        let mut left = vec![self.path(inside)];
        while let Some(path) = left.pop() {
            let (user, group) = (Uid::from_raw(self.owner.0), Gid::from_raw(self.owner.1));
            chownat(CWD, &path, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)
                .expect("change the owner");
            left.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
    }

    /// Returns the path that the pid file has outside.
    #[must_use]
    pub fn pid_file(&self) -> PathBuf {
        let name = format!("{}.pid", binary().file_name().and_then(|name| name.to_str()).expect("a name"));
        self.path(&name)
    }

    /// Returns the call of the jailer.
    #[must_use]
    pub fn jailer(&self, options: &[&str], arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(["jailer", "--id", ID, "--exec-file"]).arg(binary());
        let (user, group) = self.owner;
        command.args(["--uid", &user.to_string(), "--gid", &group.to_string(), "--chroot-base-dir"]);
        command.arg(self.base()).args(options).arg("--").args(arguments);
        command.env("VOLT_SECRET", "secret");
        command
    }

    /// Boots a guest that counts, and waits until it does.
    #[must_use]
    pub fn boot(&self, options: &[&str]) -> Jailed {
        let guest = ["run", "--kernel", "/guest.elf", "--cmdline", "count", "--memory", "64M"];
        self.start(options, &guest, "count ")
    }

    /// Starts a VM, and waits until its guest writes a line that starts so.
    #[must_use]
    pub fn start(&self, options: &[&str], arguments: &[&str], line: &str) -> Jailed {
        self.spawn(self.jailer(options, arguments).stdin(Stdio::null()), line).0
    }

    /// The same with an input for the guest, and the lines that it writes next.
    #[must_use]
    pub fn start_with_input(
        &self,
        options: &[&str],
        arguments: &[&str],
        line: &str,
    ) -> (Jailed, ChildStdin, SerialLines) {
        let (mut jailed, lines) = self.spawn(self.jailer(options, arguments).stdin(Stdio::piped()), line);
        let input = jailed.jailer.as_mut().and_then(|jailer| jailer.stdin.take());
        (jailed, input.expect("a pipe"), lines)
    }

    fn spawn(&self, command: &mut Command, line: &str) -> (Jailed, SerialLines) {
        let mut jailer = command.stdout(Stdio::piped()).spawn().expect("start the jailer");
        let mut lines = BufReader::new(jailer.stdout.take().expect("a pipe")).lines();
        let mut jailed = Jailed { pid: None, jailer: Some(jailer) };
        let found = lines.any(|found| found.is_ok_and(|found| found.starts_with(line)));
        assert!(found, "no line with {line}");
        jailed.pid = Some(self.pid());
        (jailed, lines)
    }

    /// Runs a jailer that leaves the program in the background.
    #[must_use]
    pub fn start_daemon(&self, options: &[&str], arguments: &[&str]) -> Jailed {
        let done = output(&mut self.jailer(options, arguments));
        assert!(done.status.success(), "{done:?}");
        Jailed { pid: Some(self.pid()), jailer: None }
    }

    /// Returns the number of the jail's process, as soon as the pid file has it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        let read = || fs::read_to_string(self.pid_file()).unwrap_or_default().parse().ok();
        wait_until("the pid file is written", || read().is_some());
        read().expect("it was read before")
    }
}

/// A process beside a jail, which sleeps. Drop ends it.
#[derive(Debug)]
pub struct Sleeper(Child);

impl Sleeper {
    /// Starts the process with changes to its command.
    ///
    /// # Panics
    /// It does not start.
    #[must_use]
    pub fn start(change: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new("sleep");
        // Without the streams of the test, whose reader would wait for the process if the test ended first.
        command.arg("600").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        change(&mut command);
        Self(command.spawn().expect("start sleep"))
    }

    /// Returns the number of the process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program in a jail. Drop ends it.
#[derive(Debug)]
pub struct Jailed {
    /// The number of its process, once it is known.
    pid: Option<u32>,
    /// The jailer, or the program that it became.
    jailer: Option<Child>,
}

impl Jailed {
    /// Returns the number of its process.
    ///
    /// # Panics
    /// It is not known.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.expect("it has started")
    }

    /// Returns the number of the jailer's process.
    ///
    /// # Panics
    /// The jailer has ended.
    #[must_use]
    pub fn jailer(&self) -> u32 {
        self.jailer.as_ref().expect("no daemon").id()
    }
}

impl Drop for Jailed {
    fn drop(&mut self) {
        if let Some(pid) = self.pid.and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            let _ = kill_process(pid, Signal::KILL);
        }
        if let Some(jailer) = &mut self.jailer {
            let _ = jailer.kill();
            let _ = jailer.wait();
        }
    }
}
