//! The control groups of the workload.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::{WORKLOAD, kernel_file};

/// The root of all groups of version 2.
pub(super) const ROOT: &str = "/sys/fs/cgroup";

/// Returns the topmost groups that hold neither process 1 nor the agent. An image's own init, such as
/// systemd, has groups of its own beside those of ours.
pub(super) fn of_workload() -> Vec<PathBuf> {
    let protected: Vec<_> = [group_of("1"), own()].into_iter().flatten().collect();
    below(Path::new(ROOT), &protected)
}

/// Whether process 1 is this program, which makes no groups but those of [`WORKLOAD`].
pub(super) fn is_init_of_ours() -> bool {
    let program = |process: &str| fs::read_link(format!("/proc/{process}/exe"));
    matches!((program("1"), program("self")), (Ok(init), Ok(own)) if init == own)
}

/// Returns the group of the hooks before a snapshot, which is frozen with the workload: a hook may leave
/// processes behind.
pub(super) fn of_hooks() -> Option<PathBuf> {
    let group = Path::new(WORKLOAD).join("hooks");
    match fs::create_dir(&group) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => None,
        _ => Some(group),
    }
}

/// Returns the group of this process, which it never leaves.
fn own() -> Option<PathBuf> {
    static OWN: OnceLock<Option<PathBuf>> = OnceLock::new();
    OWN.get_or_init(|| group_of("self")).clone()
}

/// Returns the group of a process.
fn group_of(process: &str) -> Option<PathBuf> {
    let text = kernel_file::read(format!("/proc/{process}/cgroup")).ok()?;
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
        for group in ["volt/agent", "volt/workload/main/inner", "init.scope", "system.slice/a"] {
            fs::create_dir_all(root.path(group)).unwrap();
        }
        fs::write(root.path("cgroup.procs"), "").unwrap();
        let found = |protected: &[&str]| -> Vec<_> {
            let protected: Vec<_> = protected.iter().map(|group| root.path(group)).collect();
            let found = below(&root.path(""), &protected).into_iter();
            found.map(|path| path.strip_prefix(root.path("")).unwrap().display().to_string()).collect()
        };
        let others = ["system.slice", "volt/workload"];
        assert_eq!(found(&["init.scope", "volt/agent"]), others);
        // Process 1 of ours is in the root group.
        assert_eq!(found(&["", "volt/agent"]), [&["init.scope"][..], &others].concat());
        assert_eq!(found(&["init.scope", "volt"]), ["system.slice"]);
    }
}
