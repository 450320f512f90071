//! The control groups of the workload.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags, open, stat};
use rustix::io::pread;

use crate::{WORKLOAD, kernel_file};

/// The root of all groups of version 2.
pub(super) const ROOT: &str = "/sys/fs/cgroup";
/// Longest list of a process's groups.
const LONGEST: usize = 4096;

/// Returns the topmost groups that hold neither process 1 nor the agent. An image's own init, such as
/// systemd, has groups of its own beside those of ours.
pub(super) fn of_workload() -> Vec<PathBuf> {
    let (root, workload) = (Path::new(ROOT), Path::new(WORKLOAD));
    let (of_init, own) = (of_init(), own());
    if let (Some(of_init), Some(own)) = (&of_init, &own)
        && !of_init.starts_with(workload)
        && has_no_others(root, own, workload)
    {
        return vec![workload.to_owned()];
    }
    let protected: Vec<_> = [of_init, own].into_iter().flatten().collect();
    below(root, &protected)
}

/// Whether there are no groups but these two, and the group that both are in. A scan tells the same, by ten
/// times as many system calls.
fn has_no_others(root: &Path, own: &Path, workload: &Path) -> bool {
    let Some(parent) = own.parent().filter(|parent| workload.parent() == Some(parent)) else { return false };
    parent.parent() == Some(root) && has_groups(root, 1) && has_groups(parent, 2)
}

/// Whether a group has so many groups directly below it. The kernel counts each one as a link, and two more:
/// the group's own name and its `.` (kernfs_refresh_inode() in fs/kernfs/inode.c).
fn has_groups(group: &Path, count: u64) -> bool {
    stat(group).is_ok_and(|found| found.st_nlink == 2 + count)
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

/// Returns the group of process 1, by one system call after the first.
fn of_init() -> Option<PathBuf> {
    static FILE: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let open = || open("/proc/1/cgroup", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
    let file = FILE.get_or_init(open).as_ref()?;
    let mut buffer = [0; LONGEST];
    let count = pread(file, &mut buffer, 0).ok()?;
    group_in(&String::from_utf8_lossy(&buffer[..count]))
}

/// Returns the group of this process, which it never leaves.
fn own() -> Option<PathBuf> {
    static OWN: OnceLock<Option<PathBuf>> = OnceLock::new();
    OWN.get_or_init(|| group_in(&kernel_file::read("/proc/self/cgroup").ok()?)).clone()
}

/// Returns the group of version 2 in the list of a process's groups (cgroups(7)).
fn group_in(text: &str) -> Option<PathBuf> {
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

    #[test]
    fn groups_of_ours_are_told_from_others_by_their_number() {
        let root = Scratch::new();
        let [agent, workload] = ["volt/agent", "volt/workload"].map(|group| root.path(group));
        for group in ["volt/agent", "volt/workload/main"] {
            fs::create_dir_all(root.path(group)).unwrap();
        }
        let has_no_others = |own: &Path| has_no_others(&root.path("."), own, &workload);
        // Some file systems count no directories.
        let counts = stat(root.path("volt")).unwrap().st_nlink == 4;
        assert_eq!(has_no_others(&agent), counts);
        assert!(!has_no_others(&root.path("agent")));
        for other in ["init.scope", "volt/other"] {
            fs::create_dir(root.path(other)).unwrap();
            assert!(!has_no_others(&agent), "{other}");
            fs::remove_dir(root.path(other)).unwrap();
        }
        assert_eq!(has_no_others(&agent), counts);
    }
}
