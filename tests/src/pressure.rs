//! Too little memory: a control group with a limit, on a host that swaps. The kernel swaps out pages that are
//! not in use, and in again when they are touched.
//!
//! A page is charged to the group of the process that touches it first, and stays so when the process moves.
//! So a process is born in the group: [`Pressure::apply`].
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::patience::in_lab;
use crate::scratch::Scratch;

/// Control groups version 2.
const GROUPS: &str = "/sys/fs/cgroup";
/// What the lab swaps to, which has nothing else to swap to.
const SWAP_MIB: u64 = 256;

/// See the module. Dropped, the limit is gone.
#[derive(Debug)]
pub struct Pressure {
    group: PathBuf,
    swap: Option<Swap>,
}

/// A swap file that is in use, in the lab.
#[derive(Debug)]
struct Swap(Scratch);

/// What it lacks here, if anything.
pub(crate) fn unavailable() -> Option<String> {
    let controllers = fs::read_to_string(Path::new(GROUPS).join("cgroup.controllers")).unwrap_or_default();
    if !controllers.split_whitespace().any(|controller| controller == "memory") {
        return Some("no control groups (version 2) that limit memory here".to_owned());
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().count() < 2 && !in_lab() {
        return Some("this host has no swap".to_owned());
    }
    groups_unavailable(GROUPS)
}

/// A control group, of version 2 or 1, whose processes have so much memory and no more: those that want more
/// are killed.
#[derive(Debug)]
pub struct MemoryLimit(PathBuf);

/// Control groups version 1 that limit memory.
const GROUPS_1: &str = "/sys/fs/cgroup/memory";

/// Where such groups are made, and the file for the limit.
fn limits() -> Option<(&'static str, &'static str)> {
    let controllers = fs::read_to_string(Path::new(GROUPS).join("cgroup.controllers")).unwrap_or_default();
    if controllers.split_whitespace().any(|controller| controller == "memory") {
        return Some((GROUPS, "memory.max"));
    }
    let of_version_1 = Path::new(GROUPS_1).join("memory.limit_in_bytes").exists();
    of_version_1.then_some((GROUPS_1, "memory.limit_in_bytes"))
}

/// What a limit lacks here, if anything.
pub(crate) fn limit_unavailable() -> Option<String> {
    if in_lab() {
        // On Linux 6.12 a merge was killed there, or took more than a minute: its page cache counts too.
        return Some("the lab's emulated disk writes pages back too slowly for a small limit".to_owned());
    }
    let lack = || Some("no control groups that limit memory here".to_owned());
    limits().map_or_else(lack, |(groups, _)| groups_unavailable(groups))
}

/// Tries to make a group there. Returns why it cannot be made.
fn groups_unavailable(groups: &str) -> Option<String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let group = Path::new(groups).join(format!("volt-probe-{}-{number}", std::process::id()));
    let made = fs::create_dir(&group).and_then(|()| fs::remove_dir(&group));
    made.err().map(|error| format!("no control group can be made in {groups} ({error})"))
}

impl MemoryLimit {
    /// Room for so many bytes.
    ///
    /// # Panics
    /// There are no such groups: the test must begin with `needs!(memory_limit)`.
    #[must_use]
    pub fn of(bytes: u64) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (groups, file) = limits().expect("groups that limit memory");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let group = Path::new(groups).join(format!("volt-limit-{}-{number}", std::process::id()));
        // With "io" the kernel writes pages of the group back in time, and slows down who writes.
        for controller in ["+memory", "+io"] {
            let _ = fs::write(Path::new(groups).join("cgroup.subtree_control"), controller);
        }
        fs::create_dir(&group).unwrap_or_else(|error| panic!("make {}: {error}", group.display()));
        let limit = Self(group);
        let path = limit.0.join(file);
        fs::write(&path, bytes.to_string()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        limit
    }

    /// A command that runs `program` in the group.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", r#"echo $$ > "$1"/cgroup.procs && shift && exec "$@""#, "sh"]);
        command.arg(&self.0).arg(program);
        command
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

impl Pressure {
    /// Room for so many bytes.
    ///
    /// # Panics
    /// There are no such groups: the test must begin with `needs!(pressure)`.
    #[must_use]
    pub fn of(bytes: u64) -> Self {
        let swap = in_lab().then(Swap::new);
        let group = Path::new(GROUPS).join(format!("volt-test-{}", std::process::id()));
        // Whether its children may have limits.
        let _ = fs::write(Path::new(GROUPS).join("cgroup.subtree_control"), "+memory");
        fs::create_dir(&group).unwrap_or_else(|error| panic!("make {}: {error}", group.display()));
        let pressure = Self { group, swap };
        pressure.write("memory.max", &bytes.to_string());
        pressure
    }

    /// Starts a command in the group: all memory that it and its children touch counts, from the first page
    /// on.
    ///
    /// # Panics
    /// The group is gone.
    pub fn apply(&self, command: &mut Command) {
        let path = self.group.join("cgroup.procs");
        let processes = File::options().write(true).open(&path);
        let processes = processes.unwrap_or_else(|error| panic!("open {}: {error}", path.display()));
        let enter = move || Ok(rustix::io::write(&processes, b"0").map(|_| ())?);
        // SAFETY: between fork and exec one system call is made, on a descriptor that is open already.
        unsafe { command.pre_exec(enter) };
    }

    /// Whether this process is in the group.
    ///
    /// # Panics
    /// The kernel does not tell.
    #[must_use]
    pub fn holds(&self, pid: u32) -> bool {
        let processes = fs::read_to_string(self.group.join("cgroup.procs")).unwrap();
        processes.lines().any(|line| line == pid.to_string())
    }

    /// Bytes that are swapped out by now.
    ///
    /// # Panics
    /// The kernel does not tell.
    #[must_use]
    pub fn swapped_out(&self) -> u64 {
        fs::read_to_string(self.group.join("memory.swap.current")).unwrap().trim().parse().unwrap()
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.group.join(file);
        fs::write(&path, text).unwrap_or_else(|error| panic!("write {text} to {}: {error}", path.display()));
    }
}

impl Drop for Pressure {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Tells whether the kernel ended a process of the group for want of memory.
            for file in ["memory.events", "memory.stat"] {
                eprintln!("{file}:\n{}", fs::read_to_string(self.group.join(file)).unwrap_or_default());
            }
        }
        // A group goes when nobody is in it any more: who is left goes to the one above.
        for pid in fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = fs::write(Path::new(GROUPS).join("cgroup.procs"), pid);
        }
        let _ = fs::remove_dir(&self.group);
        drop(self.swap.take());
    }
}

impl Swap {
    fn new() -> Self {
        let swap = Self(Scratch::new());
        fs::write(swap.file(), vec![0; (SWAP_MIB << 20) as usize]).unwrap();
        for program in ["mkswap", "swapon"] {
            let done = Command::new(program).arg(swap.file()).output().unwrap();
            assert!(done.status.success(), "{program}: {done:?}");
        }
        swap
    }

    fn file(&self) -> PathBuf {
        self.0.path("swap")
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let _ = Command::new("swapoff").arg(self.file()).status();
    }
}
