//! Storage without a layer: one image or block device.

use std::fs::File;
use std::io;

use super::host_file::HostFile;
use super::request::DiskRange;
use super::storage::{FileOffset, PendingFlush, Storage};
use crate::devices::virtio::chain::Buffers;

impl Storage for HostFile {
    fn len(&self) -> io::Result<u64> {
        self.len()
    }

    fn read(&mut self, at: u64, into: Buffers<'_>) -> io::Result<()> {
        HostFile::read(self, at, &into)
    }

    fn write(&mut self, at: u64, from: Buffers<'_>) -> io::Result<()> {
        HostFile::write(self, at, &from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sync(File::sync_data)
    }

    fn write_zeroes(&mut self, range: DiskRange) -> io::Result<()> {
        HostFile::write_zeroes(self, range)
    }

    fn forget_len(&self) {
        self.forget_len();
    }

    fn image(&self) -> &[HostFile] {
        std::slice::from_ref(self)
    }

    fn files(&self) -> Vec<&HostFile> {
        vec![self]
    }

    fn locate(&self, at: u64, _: u64) -> Option<FileOffset> {
        Some(FileOffset { file: 0, at })
    }

    fn begin_write(&mut self, at: u64, len: u64) -> io::Result<Option<FileOffset>> {
        self.check_len(at + len).map(|()| Some(FileOffset { file: 0, at }))
    }

    fn begin_flush(&mut self) -> io::Result<Option<PendingFlush>> {
        self.begin_sync().map(|sync| Some(PendingFlush { file: 0, sync, is_map_written: false }))
    }

    fn sync_done(&mut self, flush: &mut PendingFlush, done: io::Result<()>) -> io::Result<bool> {
        flush.sync.end(done).map(|()| false)
    }

    fn discard(&mut self, range: DiskRange) -> io::Result<()> {
        HostFile::discard(self, range)
    }
}
