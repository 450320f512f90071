//! Ends the processes of an abandoned test, which would take processors and memory from the tests after it.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// Kills the processes that a thread of this process has started, with their descendants. Processes that
/// other threads of the test started are left, and children of forks whose parent has ended.
pub(crate) fn kill_children(thread: Pid) {
    kill_with_descendants(listed(&format!("/proc/self/task/{thread}/children")));
}

/// Kills the processes that any thread of this process has started, as [`kill_children`] does.
pub(crate) fn kill_all_children() {
    kill_with_descendants(children_of("self"));
}

fn kill_with_descendants(mut found: Vec<Pid>) {
    let mut next = 0;
    while let Some(process) = found.get(next) {
        // A process that runs could start another after its children are listed.
        let _ = kill_process(*process, Signal::STOP);
        found.extend(children_of(&process.to_string()));
        next += 1;
    }
    for process in found {
        // It may have ended.
        let _ = kill_process(process, Signal::KILL);
    }
}

/// Tells whether a thread of this process has not ended.
pub(crate) fn thread_runs(thread: Pid) -> bool {
    fs::exists(format!("/proc/self/task/{thread}")).unwrap_or(false)
}

fn children_of(process: &str) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    tasks.flat_map(|task| listed(&task.path().join("children").to_string_lossy())).collect()
}

fn listed(path: &str) -> Vec<Pid> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}
