//! Turns at the unix sockets of a directory. A socket that a dead process left is found by a refused connection, as is one that is bound
//! and does not listen yet: two that find it at once would remove each other's. Each binds, listens and removes in its turn alone.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};

/// How long a turn is waited for, and how often it is asked for. Whoever holds one for longer is none of ours.
const LOOK: Duration = Duration::from_millis(2);
const LOOKS: u32 = 500;

/// Waits for the turn at the directory in which the socket `path` lies. It lasts as long as what is returned: a lock (flock) of the
/// directory. None if somebody else keeps that locked for a second, or it cannot be locked: then it goes without.
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
