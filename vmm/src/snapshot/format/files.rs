//! A snapshot in two files, for users who place state and memory apart.
//!
//! The memory is raw, and the state does not say what it holds: users copy the pages of a diff over an older
//! memory file, and restore the diff's state with that. Only the length of the memory is checked.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::error::{Error, Result};
use crate::paths::{self, OpenedAhead};

/// Flags for a file that is read. Opening it does not wait for the writer of a pipe.
const TO_READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK);

/// The paths of a snapshot's state and memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFiles {
    /// The state file.
    pub state: PathBuf,
    /// Raw memory, sparse.
    pub memory: PathBuf,
}

impl SnapshotFiles {
    /// Names the files.
    pub fn new(state: impl Into<PathBuf>, memory: impl Into<PathBuf>) -> Self {
        Self { state: state.into(), memory: memory.into() }
    }

    /// Asks the opener for both files, if the calling thread is one that asks.
    pub(crate) fn open_ahead(&self) -> OpenedAhead {
        OpenedAhead::new([&self.state, &self.memory].map(|path| (path.clone(), TO_READ)))
    }
}

/// Opens a regular file that the user named, and returns it with its length. Links are followed.
///
/// # Errors
/// Names the file and its fault.
pub(crate) fn open_named(path: &Path) -> Result<(File, u64)> {
    let file = paths::open(path, TO_READ, 0).map_err(|source| Error::file("open", path.display(), source))?;
    let metadata = file.metadata().map_err(|source| Error::file("look at", path.display(), source))?;
    match metadata.is_file() {
        true => Ok((file, metadata.len())),
        false if metadata.is_dir() => Err(Error::snapshot(path, "is a directory, not a file")),
        false => Err(Error::snapshot(path, "is not a regular file")),
    }
}
