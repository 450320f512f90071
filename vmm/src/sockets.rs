//! Mutual exclusion for the unix sockets of a directory. A socket refuses connections if a dead process left
//! it, and also if it is bound and does not listen yet. Two processes that replace a dead socket at once
//! would remove each other's, so each binds, listens and removes in its turn.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};

/// The time between two attempts to get a turn, and their number: one second in all. This program holds a
/// turn for microseconds.
const LOOK: Duration = Duration::from_millis(2);
const LOOKS: u32 = 500;

/// Waits for the turn at the directory of the socket `path`. The turn lasts until the result is dropped: it
/// is a lock (flock) of the directory. Returns nothing if another program holds the lock for a second, or if
/// the directory cannot be locked.
#[must_use]
pub fn turn(path: &Path) -> Option<File> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = rustix::fs::open(parent, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    for _ in 0..LOOKS {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(directory.into()),
            Err(rustix::io::Errno::WOULDBLOCK) => thread::sleep(LOOK),
            Err(_) => return None,
        }
    }
    log::warn!(
        "{} is kept locked by another program: sockets in it are bound without a turn",
        parent.display()
    );
    None
}
