//! The image of a disk, without a layer: one file, or several parts.

use std::io;
use std::os::unix::fs::FileExt;
use std::slice;

use super::digest;
use super::host_file::{Claim, HostFile, OpenMode};
use super::parts::Parts;
use super::storage::FileOffset;
use crate::config::devices::DiskConfig;
use crate::devices::virtio::chain::Buffers;
use crate::error::Result;

/// The files of an image.
#[derive(Debug)]
pub enum ImageFiles {
    /// One file, which may be written.
    One(HostFile),
    /// Several files, which are only read.
    Parts(Box<Parts>),
}

impl ImageFiles {
    /// Opens the image of a disk.
    ///
    /// # Errors
    /// Those of [`HostFile::open_as`] and [`Parts::open`].
    pub fn open(config: &DiskConfig, wanted: OpenMode, claim: Claim) -> Result<Self> {
        let DiskConfig { id, path, parts, .. } = config;
        match parts.is_empty() {
            true => HostFile::open_as(id, path, wanted, claim).map(Self::One),
            false => Parts::open(config, claim).map(Box::new).map(Self::Parts),
        }
    }

    /// Returns the image's name for messages.
    pub fn name(&self) -> &str {
        match self {
            Self::One(file) => file.name(),
            Self::Parts(parts) => parts.name(),
        }
    }

    /// Returns the files by the numbers of [`ImageFiles::locate`].
    pub fn files(&self) -> &[HostFile] {
        match self {
            Self::One(file) => slice::from_ref(file),
            Self::Parts(parts) => parts.files(),
        }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> io::Result<u64> {
        match self {
            Self::One(file) => file.len(),
            Self::Parts(parts) => Ok(parts.len()),
        }
    }

    /// Returns the digest of an image of `len` bytes, or that of its parts' digests.
    pub fn digest(&self, len: u64) -> io::Result<u64> {
        let part = |file: &HostFile| digest::of_base(file.file(), file.len()?);
        match self {
            Self::One(file) => digest::of_base(file.file(), len),
            Self::Parts(parts) => {
                let digests = parts.files().iter().map(part).collect::<io::Result<Vec<_>>>()?;
                Ok(digest::of_parts(digests))
            }
        }
    }

    /// Reads into guest memory.
    pub fn read(&self, at: u64, into: Buffers<'_>) -> io::Result<()> {
        match self {
            Self::One(file) => file.read(at, &into),
            Self::Parts(parts) => parts.read(at, into),
        }
    }

    /// Reads into the VMM's memory.
    pub fn read_exact(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        match self {
            Self::One(file) => file.file().read_exact_at(into, at),
            Self::Parts(parts) => parts.read_exact(at, into),
        }
    }

    /// Returns where a range can be read, if it lies in one file.
    pub fn locate(&self, at: u64, len: u64) -> Option<FileOffset> {
        match self {
            Self::One(_) => Some(FileOffset { file: 0, at }),
            Self::Parts(parts) => parts.locate(at, len),
        }
    }
}
