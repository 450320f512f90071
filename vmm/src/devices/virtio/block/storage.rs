//! The storage of a disk's bytes. Callers check ranges against the capacity; the storage checks that its
//! files still reach that far.

use std::io;

use super::host_file::HostFile;
use super::request::DiskRange;
use super::sync_tracker::PendingSync;
use crate::devices::virtio::chain::Buffers;

/// An offset in one of several files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOffset {
    /// The file's number.
    pub file: usize,
    /// Bytes from the file's start.
    pub at: u64,
}

/// A flush in progress, in steps that each sync a file.
#[derive(Debug)]
pub struct PendingFlush {
    /// The file's number.
    pub file: usize,
    /// The sync in progress.
    pub sync: PendingSync,
    /// The layer's map was written after the first sync, so this is the second one.
    pub is_map_written: bool,
}

/// Bytes that survive the VM. A failed operation may have been executed in part.
pub trait Storage: Send + std::fmt::Debug {
    /// Returns the length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Fills all of `into`.
    fn read(&mut self, at: u64, into: Buffers<'_>) -> io::Result<()>;

    /// Writes all of `from`.
    fn write(&mut self, at: u64, from: Buffers<'_>) -> io::Result<()>;

    /// Makes earlier writes safe from a crash of the host.
    fn flush(&mut self) -> io::Result<()>;

    /// Makes a range read as zeros.
    fn write_zeroes(&mut self, range: DiskRange) -> io::Result<()>;

    /// Gives up the content of a range, and its space on the host if possible.
    fn discard(&mut self, range: DiskRange) -> io::Result<()> {
        self.write_zeroes(DiskRange { unmap: true, ..range })
    }

    /// Returns the files by the numbers that [`FileOffset`] has.
    fn files(&self) -> Vec<&HostFile> {
        Vec::new()
    }

    /// Returns the files that a snapshot needs on disk. Files that it copies are left out.
    fn files_to_sync(&self) -> Vec<&HostFile> {
        self.files()
    }

    /// Returns where a range can be read by io_uring, if it lies in one piece.
    fn locate(&self, at: u64, len: u64) -> Option<FileOffset>;

    /// Begins a write by io_uring. Returns its location, and [`Storage::end_write`] follows. Returns `None`
    /// or an error if [`Storage::write`] has to execute it. No part of the range may be
    /// [`Storage::is_pending`].
    fn begin_write(&mut self, at: u64, len: u64) -> io::Result<Option<FileOffset>>;

    /// Ends a write that [`Storage::begin_write`] began. Returns the result of the request.
    fn end_write(&mut self, _at: u64, _len: u64, done: io::Result<()>) -> io::Result<()> {
        done
    }

    /// Returns whether a write in flight has to end before this range may change.
    fn is_pending(&self, _at: u64, _len: u64) -> bool {
        false
    }

    /// Drops all writes that were begun. [`Storage::end_write`] does not follow.
    fn abandon(&mut self) {}

    /// Begins a flush. Returns its first sync; `None` or an error if [`Storage::flush`] has to execute the
    /// flush. No other flush may be in progress.
    fn begin_flush(&mut self) -> io::Result<Option<PendingFlush>>;

    /// Records the result of a sync. Returns whether the flush needs another sync.
    fn sync_done(&mut self, flush: &mut PendingFlush, done: io::Result<()>) -> io::Result<bool>;

    /// Drops the known lengths of the files, which may have shrunk. The next write looks at them again.
    fn forget_len(&self);

    /// Completes the files, so that a later open finds all writes in this and any later boot of the host.
    fn settle(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Removes all writes since the open. The layer was empty then.
    fn empty(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns the files of the image, if there is no layer.
    fn image(&self) -> &[HostFile] {
        &[]
    }
}
