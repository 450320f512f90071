//! Finds the process that holds a resource of the host, to name it in an error. It may be any process of the
//! host, and this one too, which can have several VMs.
//!
//! The search reads the descriptors of all processes in `/proc`, so an error alone is worth it. A process of
//! another user is found by root only.

use std::fs::{self, DirEntry, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The process that has the lock of a file.
pub(crate) fn of_lock(file: &File) -> Option<u32> {
    let wanted = file.metadata().ok()?;
    find(|process, descriptor| {
        let held = fs::metadata(descriptor.path());
        let is_same = held.is_ok_and(|held| (held.dev(), held.ino()) == (wanted.dev(), wanted.ino()));
        is_same && info(process, descriptor).lines().any(|line| line.starts_with("lock:"))
    })
}

/// The process that uses the tap of this name, in the network namespace of this process.
pub(crate) fn of_tap(name: &str) -> Option<u32> {
    let namespace = fs::read_link("/proc/self/ns/net").ok()?;
    find(|process, descriptor| {
        fs::read_link(descriptor.path()).is_ok_and(|path| path.as_os_str() == "/dev/net/tun")
            && fs::read_link(process.join("ns/net")).is_ok_and(|other| other == namespace)
            && info(process, descriptor).lines().any(|line| line.strip_prefix("iff:\t") == Some(name))
    })
}

/// Adds the process to a message, if it was found.
pub(crate) fn named(process: Option<u32>) -> String {
    process.map_or_else(String::new, |process| format!(" (process {process})"))
}

fn info(process: &Path, descriptor: &DirEntry) -> String {
    fs::read_to_string(process.join("fdinfo").join(descriptor.file_name())).unwrap_or_default()
}

/// The first process with a descriptor that `is_it`.
fn find(is_it: impl Fn(&Path, &DirEntry) -> bool) -> Option<u32> {
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let process = entry.file_name().to_str()?.parse().ok()?;
        let descriptors = fs::read_dir(entry.path().join("fd")).ok()?;
        descriptors.flatten().any(|descriptor| is_it(&entry.path(), &descriptor)).then_some(process)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ScratchDir;

    #[test]
    fn holder_of_a_lock_is_found_and_an_unlocked_file_has_none() {
        let scratch = ScratchDir::new();
        let path = scratch.join("file");
        let [held, other] = [(); 2].map(|()| File::create(&path).unwrap());
        assert_eq!(of_lock(&other), None);
        rustix::fs::flock(&held, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        assert_eq!(of_lock(&other), Some(std::process::id()));
        assert_eq!(named(of_lock(&other)), format!(" (process {})", std::process::id()));
        drop(held);
        assert_eq!((of_lock(&other), named(None)), (None, String::new()));
    }
}
