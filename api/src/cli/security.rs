//! The confinement in force for the process of a VM: filters by thread, as the kernel tells them, and
//! Landlock, as the VM's threads found it.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::client;
use crate::failure::Failure;

/// The process that has no filter, because the programs that it starts would inherit it.
const STARTER: &str = "volt-starter";
/// The process that waits for that of a VM with `--confine strict`.
const KEEPER: &str = "volt-keeper";
/// Processes beside that of a VM.
const BESIDE: [&str; 2] = ["volt-opener", STARTER];

/// A process's own report: the answer to `GET /v1/security`.
#[derive(Debug, Serialize, Deserialize)]
struct OwnReport {
    confined: bool,
    seccomp: bool,
    kinds: Vec<KindReport>,
}

#[derive(Debug, Serialize, Deserialize)]
struct KindReport {
    kind: String,
    landlock: bool,
}

/// A thread, by `/proc/PID/task/TID/status` (proc_pid_status(5)).
#[derive(Debug, Serialize)]
struct Thread {
    name: String,
    tid: i32,
    no_new_privs: bool,
    /// Number of seccomp filters, where the kernel tells it (Linux 5.9).
    filters: Option<u32>,
    filtered: bool,
    /// Effective capabilities, a hexadecimal mask.
    capabilities: String,
}

/// The confinement of the process of a VM, and of those beside it.
#[derive(Debug, Serialize)]
pub(crate) struct SecurityReport {
    pid: i32,
    #[serde(flatten)]
    own: OwnReport,
    threads: Vec<Thread>,
    /// Whether all threads but the starter's are filtered and in a Landlock domain, and gain no privileges.
    pub(crate) ok: bool,
}

/// Examines the process that serves this API socket.
///
/// # Errors
/// No process serves it, or `/proc` does not tell its threads.
pub(crate) fn examine(socket: &Path) -> Result<SecurityReport, Failure> {
    let own: OwnReport = client::get(socket, "/v1/security")?;
    let processes = processes();
    let pid = of_vm(&processes, client::process_of(socket)?);
    let failed = |source| Failure::system(format!("read the threads of process {pid}"), source);
    let mut threads = threads_of(pid).map_err(failed)?;
    for beside in beside(&processes, pid) {
        // It may end meanwhile.
        threads.extend(threads_of(beside).unwrap_or_default());
    }
    let is_confined = |thread: &Thread| thread.no_new_privs && (thread.filtered || thread.name == STARTER);
    let ok = own.confined
        && own.seccomp
        && threads.iter().all(is_confined)
        && own.kinds.iter().all(|kind| kind.landlock);
    Ok(SecurityReport { pid, own, threads, ok })
}

fn threads_of(pid: i32) -> io::Result<Vec<Thread>> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))?;
    let mut threads = Vec::new();
    for task in tasks {
        // A thread that has ended meanwhile has no status.
        let Ok(status) = fs::read_to_string(task?.path().join("status")) else { continue };
        threads.extend(Thread::of(&status));
    }
    threads.sort_by_key(|thread| thread.tid);
    Ok(threads)
}

impl Thread {
    fn of(status: &str) -> Option<Self> {
        let field = |name| field(status, name);
        Some(Self {
            name: field("Name")?.to_owned(),
            tid: field("Pid")?.parse().ok()?,
            no_new_privs: field("NoNewPrivs") == Some("1"),
            filters: field("Seccomp_filters").and_then(|filters| filters.parse().ok()),
            filtered: field("Seccomp") == Some("2"),
            capabilities: field("CapEff")?.to_owned(),
        })
    }
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// A process, by `/proc/PID/status`.
#[derive(Debug)]
struct Process {
    pid: i32,
    parent: i32,
    name: String,
}

/// Reads the processes that there are.
fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| {
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        let number = |name| field(&status, name)?.parse().ok();
        Some(Process {
            pid: number("Pid")?,
            parent: number("PPid")?,
            name: field(&status, "Name")?.to_owned(),
        })
    };
    entries.filter_map(of).collect()
}

/// Returns the process of a VM: the one that its keeper waits for, or the process itself.
pub(crate) fn process_of_vm(started: i32) -> i32 {
    let name = fs::read_to_string(format!("/proc/{started}/comm")).unwrap_or_default();
    // The table of all processes takes as many reads as there are processes.
    if name.trim_end() == KEEPER { of_vm(&processes(), started) } else { started }
}

/// Returns the process of the VM: the child of `listening` if that is a keeper.
fn of_vm(processes: &[Process], listening: i32) -> i32 {
    let is_keeper = |process: &&Process| process.pid == listening && process.name == KEEPER;
    let is_kept = |process: &&Process| process.parent == listening && !BESIDE.contains(&&*process.name);
    let kept = processes.iter().find(is_keeper).and_then(|_| processes.iter().find(is_kept));
    kept.map_or(listening, |kept| kept.pid)
}

/// Finds the opener and the starter of a process: its children, or its siblings if it has a keeper.
fn beside(processes: &[Process], pid: i32) -> Vec<i32> {
    let parent = processes.iter().find(|process| process.pid == pid).map(|process| process.parent);
    let is_beside = |process: &&Process| {
        BESIDE.contains(&&*process.name) && (process.parent == pid || Some(process.parent) == parent)
    };
    processes.iter().filter(is_beside).map(|process| process.pid).collect()
}

/// Writes the report as text.
pub(crate) fn table(report: &SecurityReport) -> String {
    let mut text = format!("process {}: {}\n\n", report.pid, verdict(report));
    let _ = writeln!(
        text,
        "{:<16}{:>9}  {:<18}{:<10}capabilities",
        "thread", "id", "no new privileges", "filters"
    );
    for thread in &report.threads {
        let filters = match (thread.filtered, thread.filters) {
            (false, _) => "none".to_owned(),
            (true, Some(number)) => number.to_string(),
            (true, None) => "yes".to_owned(),
        };
        let privileges = if thread.no_new_privs { "yes" } else { "NO" };
        let Thread { name, tid, capabilities, .. } = thread;
        let _ = writeln!(text, "{name:<16}{tid:>9}  {privileges:<18}{filters:<10}{capabilities}");
    }
    text.push_str("\nLandlock, as a thread of each kind found it:\n");
    for KindReport { kind, landlock } in &report.own.kinds {
        let _ = writeln!(text, "  {kind:<14}{}", if *landlock { "in force" } else { "NOT IN FORCE" });
    }
    text
}

fn verdict(report: &SecurityReport) -> &'static str {
    match (report.ok, report.own.confined, report.own.seccomp) {
        (true, ..) => "confined",
        (_, false, _) => "NOT CONFINED (--confine off)",
        (_, _, false) => "confined WITHOUT FILTERS (--no-seccomp)",
        _ => "confined IN PART",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_of_a_thread_is_read() {
        let status = "Name:\tvolt-api\nPid:\t7\nPPid:\t1\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n\
                      Seccomp:\t2\nSeccomp_filters:\t3\n";
        let thread = Thread::of(status).unwrap();
        assert_eq!((thread.name.as_str(), thread.tid, thread.filters), ("volt-api", 7, Some(3)));
        assert!(thread.no_new_privs && thread.filtered);
        let old = Thread::of("Name:\tx\nPid:\t8\nCapEff:\t0\nSeccomp:\t0\n").unwrap();
        assert_eq!((old.no_new_privs, old.filtered, old.filters), (false, false, None));
    }

    #[test]
    fn own_threads_are_found() {
        let pid = std::process::id().cast_signed();
        assert!(threads_of(pid).unwrap().iter().any(|thread| thread.tid == pid));
        assert!(beside(&processes(), pid).is_empty());
    }

    #[test]
    fn processes_of_a_vm_are_found_with_and_without_a_keeper() {
        let process = |pid, parent, name: &str| Process { pid, parent, name: name.to_owned() };
        let alone = [process(7, 1, "volt-vmm"), process(8, 7, "volt-opener"), process(9, 7, STARTER)];
        assert_eq!((of_vm(&alone, 7), beside(&alone, 7)), (7, vec![8, 9]));
        let kept = [
            process(7, 1, KEEPER),
            process(8, 7, "volt-opener"),
            process(9, 7, STARTER),
            process(10, 7, "volt-vmm"),
        ];
        assert_eq!((of_vm(&kept, 7), beside(&kept, 10)), (10, vec![8, 9]));
        let others = [process(7, 1, "volt-vmm"), process(8, 6, "volt-opener")];
        assert_eq!(beside(&others, 7), [0; 0]);
    }
}
