//! Control groups with little memory. On a host with swap the kernel swaps their unused pages out.
//!
//! A page is charged to the group of the process that first touches it, even if the process moves later.
//! Therefore a process is started in the group: [`Pressure::apply`].
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::Pid;

use crate::patience::in_lab;
use crate::scratch::Scratch;

/// Control groups version 2.
const GROUPS: &str = "/sys/fs/cgroup";
/// Size of the lab's swap file. The lab has no other swap.
const SWAP_MIB: u64 = 256;

/// A group under pressure. The limit ends on drop.
#[derive(Debug)]
pub struct Pressure {
    group: PathBuf,
    swap: Option<Swap>,
}

/// A swap file in use, in the lab.
#[derive(Debug)]
struct Swap(Scratch);

/// Tells why [`Pressure`] cannot work here.
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

/// A control group, version 2 or 1, with a limit on memory. The kernel kills processes that need more.
#[derive(Debug)]
pub struct MemoryLimit(PathBuf);

/// Control groups version 1 that limit memory.
const GROUPS_1: &str = "/sys/fs/cgroup/memory";

/// Returns the directory of such groups and the file for the limit.
fn limits() -> Option<(&'static str, &'static str)> {
    let controllers = fs::read_to_string(Path::new(GROUPS).join("cgroup.controllers")).unwrap_or_default();
    if controllers.split_whitespace().any(|controller| controller == "memory") {
        return Some((GROUPS, "memory.max"));
    }
    let of_version_1 = Path::new(GROUPS_1).join("memory.limit_in_bytes").exists();
    of_version_1.then_some((GROUPS_1, "memory.limit_in_bytes"))
}

/// Tells why [`MemoryLimit`] cannot work here.
pub(crate) fn limit_unavailable() -> Option<String> {
    if in_lab() {
        // On Linux 6.12 in the lab a merge was killed or took more than a minute, because its page cache
        // counts.
        return Some("the lab's emulated disk writes pages back too slowly for a small limit".to_owned());
    }
    let lack = || Some("no control groups that limit memory here".to_owned());
    limits().map_or_else(lack, |(groups, _)| groups_unavailable(groups))
}

/// Tries to make a group there. Returns the error.
fn groups_unavailable(groups: &str) -> Option<String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let group = Path::new(groups).join(format!("volt-probe-{}-{number}", std::process::id()));
    let made = fs::create_dir(&group).and_then(|()| fs::remove_dir(&group));
    made.err().map(|error| format!("no control group can be made in {groups} ({error})"))
}

impl MemoryLimit {
    /// Makes a group with this limit in bytes.
    ///
    /// # Panics
    /// The group cannot be made: the test must begin with `needs!(memory_limit)`.
    #[must_use]
    pub fn of(bytes: u64) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (groups, file) = limits().expect("groups that limit memory");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let group = Path::new(groups).join(format!("volt-limit-{}-{number}", std::process::id()));
        // With "io" the kernel writes the group's pages back in time and throttles writers.
        for controller in ["+memory", "+io"] {
            let _ = fs::write(Path::new(groups).join("cgroup.subtree_control"), controller);
        }
        fs::create_dir(&group).unwrap_or_else(|error| panic!("make {}: {error}", group.display()));
        let limit = Self(group);
        let path = limit.0.join(file);
        fs::write(&path, bytes.to_string()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        limit
    }

    /// Starts a command in the group. All memory of the command and its children counts.
    ///
    /// # Panics
    /// The group is gone.
    pub fn apply(&self, command: &mut Command) {
        enter(&self.0, command);
    }

    /// Moves a process to the group. Memory that it touches from then on counts.
    ///
    /// # Panics
    /// The process has ended.
    pub fn take(&self, process: Pid) {
        fs::write(self.0.join("cgroup.procs"), process.as_raw_nonzero().to_string()).expect("move a process");
    }

    /// Returns how many processes of the group the kernel has killed for lack of memory.
    ///
    /// # Panics
    /// The kernel does not tell.
    #[must_use]
    pub fn kills(&self) -> u64 {
        kills_in(&self.0)
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// Returns how many processes of a group the kernel has killed for lack of memory.
fn kills_in(group: &Path) -> u64 {
    let told = |file| fs::read_to_string(group.join(file)).ok();
    let told = told("memory.events").or_else(|| told("memory.oom_control")).expect("events of the group");
    let number = told.lines().find_map(|line| line.strip_prefix("oom_kill "));
    number.expect("the number of kills").parse().expect("a number")
}

/// Starts a command in a group.
fn enter(group: &Path, command: &mut Command) {
    let path = group.join("cgroup.procs");
    let processes = File::options().write(true).open(&path);
    let processes = processes.unwrap_or_else(|error| panic!("open {}: {error}", path.display()));
    let enter = move || Ok(rustix::io::write(&processes, b"0").map(|_| ())?);
    // SAFETY: between fork and exec one system call is made, on an open descriptor.
    unsafe { command.pre_exec(enter) };
}

/// Removes a group. Only an empty one can be removed, so its processes move to the parent group.
fn remove(group: &Path) {
    let parent = group.parent().expect("the group is in another one");
    for pid in fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default().lines() {
        let _ = fs::write(parent.join("cgroup.procs"), pid);
    }
    let _ = fs::remove_dir(group);
}

impl Pressure {
    /// Makes a group with this limit in bytes.
    ///
    /// # Panics
    /// The group cannot be made: the test must begin with `needs!(pressure)`.
    #[must_use]
    pub fn of(bytes: u64) -> Self {
        let swap = in_lab().then(Swap::new);
        let group = Path::new(GROUPS).join(format!("volt-test-{}", std::process::id()));
        // Lets child groups have limits.
        let _ = fs::write(Path::new(GROUPS).join("cgroup.subtree_control"), "+memory");
        fs::create_dir(&group).unwrap_or_else(|error| panic!("make {}: {error}", group.display()));
        let pressure = Self { group, swap };
        pressure.write("memory.max", &bytes.to_string());
        pressure
    }

    /// Starts a command in the group. All memory of the command and its children counts.
    ///
    /// # Panics
    /// The group is gone.
    pub fn apply(&self, command: &mut Command) {
        enter(&self.group, command);
    }

    /// Tells whether a process is in the group.
    ///
    /// # Panics
    /// The group cannot be read.
    #[must_use]
    pub fn holds(&self, pid: u32) -> bool {
        let processes = fs::read_to_string(self.group.join("cgroup.procs")).unwrap();
        processes.lines().any(|line| line == pid.to_string())
    }

    /// Returns the bytes that are swapped out now.
    ///
    /// # Panics
    /// The group cannot be read.
    #[must_use]
    pub fn swapped_out(&self) -> u64 {
        fs::read_to_string(self.group.join("memory.swap.current")).unwrap().trim().parse().unwrap()
    }

    /// Limits the bytes that may be swapped out.
    ///
    /// # Panics
    /// The kernel refuses.
    pub fn limit_swap(&self, bytes: u64) {
        self.write("memory.swap.max", &bytes.to_string());
    }

    /// Returns how many processes of the group the kernel has killed for lack of memory.
    ///
    /// # Panics
    /// The kernel does not tell.
    #[must_use]
    pub fn kills(&self) -> u64 {
        kills_in(&self.group)
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.group.join(file);
        fs::write(&path, text).unwrap_or_else(|error| panic!("write {text} to {}: {error}", path.display()));
    }
}

impl Drop for Pressure {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Shows whether the kernel killed a process of the group for lack of memory.
            for file in ["memory.events", "memory.stat"] {
                eprintln!("{file}:\n{}", fs::read_to_string(self.group.join(file)).unwrap_or_default());
            }
        }
        remove(&self.group);
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
