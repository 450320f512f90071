//! Several files as one image, one after another. They are only read. VMs whose disks have a part in common
//! share its pages in the host's page cache.

use std::io;
use std::os::unix::fs::FileExt;

use super::host_file::{Claim, HostFile, OpenMode, file_shrunk};
use super::request::{DiskRange, SECTOR};
use super::storage::{FileOffset, PendingFlush, Storage};
use crate::config::devices::DiskConfig;
use crate::devices::virtio::chain::Buffers;
use crate::error::{Error, Result};

/// The files of an image, in order.
#[derive(Debug)]
pub struct Parts {
    /// The image's name for messages.
    name: String,
    files: Vec<HostFile>,
    /// The end of each file in the image. Lengths count from the open: a file that grows adds nothing.
    ends: Vec<u64>,
}

impl Parts {
    /// Opens the parts of a disk.
    ///
    /// # Errors
    /// Those of [`HostFile::open_as`]; a part has no whole sectors, or the parts are too long in all.
    pub fn open(config: &DiskConfig, claim: Claim) -> Result<Self> {
        let DiskConfig { id, parts, .. } = config;
        let (mut files, mut ends) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
        let mut end: u64 = 0;
        for part in parts {
            let file = HostFile::open_as(id, part, OpenMode::Read, claim)?;
            let len =
                file.len().map_err(|source| Error::file("read metadata of disk", file.name(), source))?;
            if len == 0 || !len.is_multiple_of(SECTOR) {
                let problem = format!("{part} has {len} bytes; a part has whole sectors of {SECTOR} bytes");
                return Err(Error::config("disks", format!("{id}: {problem}")));
            }
            end = end.checked_add(len).filter(|end| i64::try_from(*end).is_ok()).ok_or_else(|| {
                let problem = format!("{id}: the parts up to {part} are longer than a file can be");
                Error::config("disks", problem)
            })?;
            files.push(file);
            ends.push(end);
        }
        Ok(Self { name: config.image_name(), files, ends })
    }

    /// Returns the image's name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the files by the numbers of [`Parts::locate`].
    pub fn files(&self) -> &[HostFile] {
        &self.files
    }

    /// Returns the length of all parts in bytes.
    pub fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Returns where a range can be read, if it lies in one part.
    pub fn locate(&self, at: u64, len: u64) -> Option<FileOffset> {
        let (found, left) = self.find(at)?;
        (len <= left).then_some(found)
    }

    /// Reads into guest memory, from one part after another.
    pub fn read(&self, at: u64, mut into: Buffers<'_>) -> io::Result<()> {
        self.each(at, into.len(), |file, at, count| {
            // Most reads lie in one part, and need no split.
            let done = match count == into.len() {
                true => file.read(at, &into),
                false => file.read(at, &into.take(count)),
            };
            done.map_err(|error| file.named(&error))
        })
    }

    /// Reads into the VMM's memory, from one part after another.
    pub fn read_exact(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let mut rest = &mut *into;
        let len = rest.len();
        self.each(at, len, |file, at, count| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(count);
            rest = later;
            file.file().read_exact_at(now, at).map_err(|error| file.named(&error))
        })
    }

    /// Calls `act` with each file of a range, and the offset and length of the range's piece there.
    fn each(
        &self,
        mut at: u64,
        mut len: usize,
        mut act: impl FnMut(&HostFile, u64, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        while len > 0 {
            let (found, left) = self.find(at).ok_or_else(file_shrunk)?;
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(len);
            act(&self.files[found.file], found.at, count)?;
            at += count as u64;
            len -= count;
        }
        Ok(())
    }

    /// Returns the part of a byte and the byte's offset there, and how many bytes the part has from there on.
    fn find(&self, at: u64) -> Option<(FileOffset, u64)> {
        let file = self.ends.partition_point(|end| *end <= at);
        let end = *self.ends.get(file)?;
        let start = file.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some((FileOffset { file, at: at - start }, end - at))
    }
}

/// Callers refuse writes to a read-only disk, so that none comes here.
fn only_read<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}

impl Storage for Parts {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len())
    }

    fn read(&mut self, at: u64, into: Buffers<'_>) -> io::Result<()> {
        Parts::read(self, at, into)
    }

    fn write(&mut self, _: u64, _: Buffers<'_>) -> io::Result<()> {
        only_read()
    }

    /// Has nothing to do: the guest writes nothing.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn write_zeroes(&mut self, _: DiskRange) -> io::Result<()> {
        only_read()
    }

    fn files(&self) -> Vec<&HostFile> {
        self.files.iter().collect()
    }

    fn locate(&self, at: u64, len: u64) -> Option<FileOffset> {
        Parts::locate(self, at, len)
    }

    fn begin_write(&mut self, _: u64, _: u64) -> io::Result<Option<FileOffset>> {
        Ok(None)
    }

    fn begin_flush(&mut self) -> io::Result<Option<PendingFlush>> {
        Ok(None)
    }

    fn sync_done(&mut self, _: &mut PendingFlush, done: io::Result<()>) -> io::Result<bool> {
        done.map(|()| false)
    }

    fn forget_len(&self) {}

    fn image(&self) -> &[HostFile] {
        &self.files
    }
}
