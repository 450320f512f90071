//! Files that a snapshot of a disk depends on, opened once more to be synced while the device works.

use std::fs::File;

use super::host_file::HostFile;
use super::storage::Storage;
use crate::error::{Error, Result};

/// Files that a snapshot of a disk depends on.
#[derive(Debug)]
pub struct DiskFiles(Vec<HostFile>);

impl DiskFiles {
    /// Duplicates the files of a disk.
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub(super) fn of(storage: &dyn Storage) -> Result<Self> {
        let duplicate = |file: &HostFile| {
            file.duplicate()
                .map_err(|source| Error::file("duplicate descriptor of disk", file.name(), source))
        };
        storage.files_to_sync().into_iter().map(duplicate).collect::<Result<_>>().map(Self)
    }

    /// Syncs the files' data and modification times. If a sync fails, the guest's next flush fails too.
    ///
    /// # Errors
    /// This sync failed, or an earlier one did.
    pub fn sync(&self) -> Result<()> {
        let sync = |file: &HostFile| {
            file.sync(File::sync_all).map_err(|source| Error::file("sync disk", file.name(), source))
        };
        self.0.iter().try_for_each(sync)
    }
}
