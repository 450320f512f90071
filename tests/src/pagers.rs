//! Pagers that guests have started, which are no children of the test.

use std::fs;
use std::path::Path;

use rustix::process::Pid;

use crate::scratch::list;

/// Lists the processes that are pagers of this directory.
#[must_use]
pub fn processes_with(directory: &Path) -> Vec<Pid> {
    let is_one = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<_> = line.split(|byte| *byte == 0).collect();
        words.get(1) == Some(&&b"pager"[..]) && words.contains(&directory.as_os_str().as_encoded_bytes())
    };
    let all = list(Path::new("/proc")).into_iter().filter_map(|name| name.parse().ok());
    let pagers: Vec<i32> = all.filter(is_one).collect();
    // A pager's opener has its arguments for a moment.
    let is_opener = |pid: i32| parent(pid).is_some_and(|parent| pagers.contains(&parent));
    pagers.iter().filter(|pid| !is_opener(**pid)).filter_map(|pid| Pid::from_raw(*pid)).collect()
}

/// The parent of a process (`PPid` of proc_pid_status(5)).
fn parent(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}
