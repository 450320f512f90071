//! Ends the processes of an abandoned test, which would take processors and memory from the tests after it.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// Kills the processes that a thread of this process has started, with their descendants. Processes that
/// other threads of the test started are left, and children of forks whose parent has ended.
pub(crate) fn kill_children(thread: Pid) {
    let mut found = listed(&format!("/proc/self/task/{thread}/children"));
    let mut next = 0;
    while let Some(process) = found.get(next) {
        let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        let children: Vec<Pid> =
            tasks.flat_map(|task| listed(&task.path().join("children").to_string_lossy())).collect();
        found.extend(children);
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

fn listed(path: &str) -> Vec<Pid> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}
