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
    all.filter(is_one).filter_map(Pid::from_raw).collect()
}
