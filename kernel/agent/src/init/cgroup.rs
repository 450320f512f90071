//! Control groups: one of the agent, and one of the workload, which has the main process and the agent's
//! commands in groups of their own.

use std::fs::{self, File, OpenOptions};
use std::io;

use crate::{COMMANDS, WORKLOAD};

/// Parent of these groups. It has no processes of its own, as version 2 demands of a group with controllers.
const PARENT: &str = "/sys/fs/cgroup/volt";
/// Group of the main process and its children.
pub(super) const MAIN: &str = "/sys/fs/cgroup/volt/workload/main";
/// Group of the agent.
pub(super) const AGENT: &str = "/sys/fs/cgroup/volt/agent";

/// Makes the groups.
pub(super) fn make() -> Result<(), String> {
    let made = fs::create_dir_all(WORKLOAD)
        .and_then(|()| ["/sys/fs/cgroup", PARENT, WORKLOAD].into_iter().try_for_each(pass_on_controllers))
        .and_then(|()| [MAIN, AGENT, COMMANDS].into_iter().try_for_each(fs::create_dir_all));
    made.map_err(|error| format!("cannot make control groups in {PARENT}: {error}"))
}

/// Lets groups below this one have its controllers. A controller that refuses stays off.
fn pass_on_controllers(group: &str) -> io::Result<()> {
    for controller in fs::read_to_string(format!("{group}/cgroup.controllers"))?.split_whitespace() {
        let _ = fs::write(format!("{group}/cgroup.subtree_control"), format!("+{controller}"));
    }
    Ok(())
}

/// Opens the file by which a process joins the group, if there is the group.
pub(super) fn entrance(group: &str) -> Option<File> {
    OpenOptions::new().write(true).open(format!("{group}/cgroup.procs")).ok()
}

/// Kills all processes of the main process's group. Linux before 5.14 cannot.
pub(super) fn kill_main() {
    let _ = fs::write(format!("{MAIN}/cgroup.kill"), "1");
}

/// Tells whether the kernel killed a process of the main process's group for want of memory.
pub(super) fn ran_out_of_memory() -> bool {
    fs::read_to_string(format!("{MAIN}/memory.events")).is_ok_and(|events| counts_kills(&events))
}

fn counts_kills(events: &str) -> bool {
    let kills = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
    kills.is_some_and(|count| count.trim() != "0")
}

#[cfg(test)]
mod tests {
    use super::counts_kills;

    #[test]
    fn only_kills_count_as_out_of_memory() {
        assert!(counts_kills("low 0\nmax 3\noom 1\noom_kill 1\noom_group_kill 0\n"));
        assert!(!counts_kills("low 0\nmax 3\noom 1\noom_kill 0\noom_group_kill 1\n"));
        assert!(!counts_kills(""));
    }
}
