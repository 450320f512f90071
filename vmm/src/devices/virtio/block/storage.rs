//! What a disk's bytes are kept in. Stretches have been checked against the capacity before they come here; that the storage
//! still has them is its own to find out.

use std::io;

use super::host_file::HostFile;
use super::request::DiskRange;
use super::sync_tracker::PendingSync;
use crate::devices::virtio::chain::Buffers;

/// A place in one of several files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOffset {
    /// The file's number.
    pub file: usize,
    /// Bytes from its start.
    pub at: u64,
}

/// A flush that the ring does in steps, each of which syncs a file.
#[derive(Debug)]
pub struct PendingFlush {
    /// The file's number.
    pub file: usize,
    /// The sync under way.
    pub sync: PendingSync,
    /// A layer's map was written after the first sync, and the second is for that.
    pub is_map_written: bool,
}

/// Bytes that survive the VM. An operation that fails may have been done in part.
pub trait Storage: Send + std::fmt::Debug {
    /// Bytes.
    fn len(&self) -> io::Result<u64>;

    /// Reads all of it or it is an error.
    fn read(&mut self, at: u64, into: Buffers<'_>) -> io::Result<()>;

    /// Writes all of it or it is an error.
    fn write(&mut self, at: u64, from: Buffers<'_>) -> io::Result<()>;

    /// What was written before is safe from a crash of the host.
    fn flush(&mut self) -> io::Result<()>;

    /// Lets a stretch read as zeros.
    fn write_zeroes(&mut self, stretch: DiskRange) -> io::Result<()>;

    /// Gives up what a stretch holds, and its place on the host if that can be.
    fn discard(&mut self, stretch: DiskRange) -> io::Result<()> {
        self.write_zeroes(DiskRange { unmap: true, ..stretch })
    }

    /// The files that [`Storage::locate`] speaks of, by their numbers.
    fn files(&self) -> Vec<&HostFile> {
        Vec::new()
    }

    /// The files that a snapshot needs to be on disk. What it has a copy of is not needed.
    fn files_to_sync(&self) -> Vec<&HostFile> {
        self.files()
    }

    /// The place of a stretch for the ring to read; none if it is not in one piece.
    fn locate(&self, at: u64, len: u64) -> Option<FileOffset>;

    /// Begins a write by the ring, which then calls [`Storage::end_write`]. Returns its place; none, or an
    /// error, if [`Storage::write`] is to do it. No part of it may be [`Storage::is_pending`].
    fn begin_write(&mut self, at: u64, len: u64) -> io::Result<Option<FileOffset>>;

    /// A write that was begun has come to its end, which is that of the request if it returns it.
    fn end_write(&mut self, _at: u64, _len: u64, done: io::Result<()>) -> io::Result<()> {
        done
    }

    /// Whether another write has begun that is to end before a part of this is changed.
    fn is_pending(&self, _at: u64, _len: u64) -> bool {
        false
    }

    /// Writes that were begun are never said to have ended.
    fn abandon(&mut self) {}

    /// Begins a flush: what to sync first. None, or an error, where [`Storage::flush`] is to do it. No other
    /// may be under way.
    fn begin_flush(&mut self) -> io::Result<Option<PendingFlush>>;

    /// The file was synced, or that failed. Whether it has to be synced once more for this flush.
    fn sync_done(&mut self, flush: &mut PendingFlush, done: io::Result<()>) -> io::Result<bool>;

    /// The files may have become shorter: it is looked at again before the next write.
    fn forget_len(&self);

    /// What was written before is in the files, for whoever opens them in this boot of the host or a later one.
    fn settle(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Is again what it was when it was opened. Asked only of a layer that was empty then.
    fn empty(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The one file that it is, where there is no layer.
    fn image(&self) -> Option<&HostFile> {
        None
    }

    /// A write that somebody else does, where [`Storage::locate`] said, begins now.
    fn log_write(&mut self, _at: u64, _len: u64) {}
}
