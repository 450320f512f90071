//! The control groups of the workload.

use std::fs;
use std::path::{Path, PathBuf};

/// The root of all groups of version 2.
pub(super) const ROOT: &str = "/sys/fs/cgroup";

/// Returns the topmost groups that hold neither process 1 nor the agent. An image's own init, such as
/// systemd, has groups of its own beside those of ours.
pub(super) fn of_workload() -> Vec<PathBuf> {
    let protected: Vec<_> = ["1", "self"].into_iter().filter_map(group_of).collect();
    below(Path::new(ROOT), &protected)
}

/// Returns the group of the hooks before a snapshot, which is frozen with the workload: a hook may leave
/// processes behind.
pub(super) fn of_hooks() -> Option<PathBuf> {
    let group = group_of("self")?.parent()?.join("hooks");
    fs::create_dir_all(&group).ok().map(|()| group)
}

/// Returns the group of a process.
fn group_of(process: &str) -> Option<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(ROOT).join(path))
}

/// Returns the topmost groups below `group` that contain none of these.
fn below(group: &Path, protected: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    for child in groups.map(|entry| entry.path()) {
        if protected.iter().any(|protected| protected == &child) {
            // A group below that of process 1 would be frozen with all that process 1 starts there.
            continue;
        }
        if protected.iter().any(|protected| protected.starts_with(&child)) {
            found.extend(below(&child, protected));
        } else {
            found.push(child);
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn groups_beside_those_of_the_agent_and_of_process_1_are_found() {
        let root = Scratch::new();
        for group in ["volt/agent", "volt/main/inner", "volt/commands/1", "init.scope", "system.slice/a"] {
            fs::create_dir_all(root.path(group)).unwrap();
        }
        fs::write(root.path("cgroup.procs"), "").unwrap();
        let found = |protected: &[&str]| -> Vec<_> {
            let protected: Vec<_> = protected.iter().map(|group| root.path(group)).collect();
            let found = below(&root.path(""), &protected).into_iter();
            found.map(|path| path.strip_prefix(root.path("")).unwrap().display().to_string()).collect()
        };
        let others = ["system.slice", "volt/commands", "volt/main"];
        assert_eq!(found(&["init.scope", "volt/agent"]), others);
        // Process 1 of ours is in the root group.
        assert_eq!(found(&["", "volt/agent"]), [&["init.scope"][..], &others].concat());
        assert_eq!(found(&["init.scope", "volt"]), ["system.slice"]);
    }
}
