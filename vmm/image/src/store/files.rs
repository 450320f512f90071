//! Files of a store that appear whole or not at all.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::Store;
use crate::error::{Error, Result};

impl Store {
    /// A path in `partial` that nothing else uses, nor has used: processes of containers share their numbers.
    pub(super) fn own_partial(&self) -> PathBuf {
        // Each has random keys.
        let number = RandomState::new().hash_one(std::process::id());
        self.root.join("partial").join(format!("{number:016x}"))
    }

    /// The same, for an archive that is unpacked.
    pub(crate) fn partial_of_archive(&self) -> PathBuf {
        self.own_partial()
    }

    /// Replaces a file by these bytes.
    pub(super) fn replace(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let partial = self.own_partial();
        let written = write(&partial, bytes).and_then(|()| appear(&partial, path));
        if written.is_err() {
            let _ = fs::remove_file(&partial);
        }
        written
    }
}

/// Writes a new file, and waits until the disk has it.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create_new(path).map_err(Error::host("create", path))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(Error::host("write", path))
}

/// Gives a file or directory, which is whole, its name.
pub(super) fn appear(partial: &Path, path: &Path) -> Result<()> {
    fs::rename(partial, path).map_err(Error::host("make", path))?;
    path.parent().map_or(Ok(()), sync)
}

/// Waits until the disk has the names of a directory.
pub(super) fn sync(directory: &Path) -> Result<()> {
    let opened = File::open(directory).and_then(|directory| directory.sync_all());
    opened.map_err(Error::host("sync", directory))
}
