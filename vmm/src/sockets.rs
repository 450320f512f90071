//! Mutual exclusion for the unix sockets of a directory. A socket refuses connections if a dead process left
//! it, and also between bind and listen. Two processes that replace a dead socket at once could remove each
//! other's, so each locks the directory while it removes, binds and listens.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};

/// The time between two attempts to lock, and their number: one second in all. This program holds the lock
/// for microseconds.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);
const ATTEMPTS: u32 = 500;

/// Locks the directory of the socket `path` (flock) until the result is dropped. Returns none if another
/// program holds the lock for a second, or if the directory cannot be locked.
#[must_use]
pub fn lock_directory_of(path: &Path) -> Option<File> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = rustix::fs::open(parent, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    for _ in 0..ATTEMPTS {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(directory.into()),
            Err(rustix::io::Errno::WOULDBLOCK) => thread::sleep(RETRY_INTERVAL),
            Err(_) => return None,
        }
    }
    log::warn!("another program holds a lock on {}: binding a socket there without a lock", parent.display());
    None
}
