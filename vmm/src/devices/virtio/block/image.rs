//! An image that a guest uses without a layer, for those who sync it or look whether it has changed while the device works.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use super::digest;
use super::file::HostFile;
use crate::config::DiskContent;
use crate::error::{Error, Result};

/// The image, open once more. When it was written last is known from the start.
#[derive(Debug)]
pub struct Image {
    file: HostFile,
    is_written: bool,
    modified: Option<String>,
}

impl Image {
    /// Of this file, now.
    ///
    /// # Errors
    /// The host does not let it be looked at.
    pub(super) fn of(file: &HostFile, is_written: bool) -> Result<Self> {
        let failed = |source| Error::file("look at disk", file.name(), source);
        let file = file.duplicate().map_err(failed)?;
        let modified = match is_written && !file.is_block_device() {
            true => {
                let found = file.file().metadata().map_err(failed)?;
                Some(format!("{}.{:09}", found.mtime(), found.mtime_nsec()))
            }
            false => None,
        };
        Ok(Self { file, is_written, modified })
    }

    /// Its name, as the user gave it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.file.name()
    }

    /// Syncs what the guest has written, and when that was. If it fails, the guest's next flush fails too.
    ///
    /// # Errors
    /// The host cannot.
    pub fn sync(&self) -> Result<()> {
        match self.is_written {
            true => {
                let done = self.file.sync(File::sync_all);
                done.map_err(|source| Error::file("sync disk", self.name(), source))
            }
            false => Ok(()),
        }
    }

    /// What it is.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn content(&self) -> Result<DiskContent> {
        let content = || -> io::Result<DiskContent> {
            let bytes = self.file.len()?;
            let digest = format!("{:016x}", digest::of_base(self.file.file(), bytes)?);
            Ok(DiskContent { bytes, digest, modified: self.modified.clone() })
        };
        content().map_err(|source| Error::file("read disk", self.name(), source))
    }
}
