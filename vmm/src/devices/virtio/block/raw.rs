//! An image without a layer as storage.

use std::fs::File;
use std::io;

use super::host_file::HostFile;
use super::request::Stretch;
use super::storage::{Flush, Place, Storage};
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

    fn write_zeroes(&mut self, stretch: Stretch) -> io::Result<()> {
        HostFile::write_zeroes(self, stretch)
    }

    fn forget_len(&self) {
        self.forget_len();
    }

    fn image(&self) -> Option<&HostFile> {
        Some(self)
    }

    fn files(&self) -> Vec<&HostFile> {
        vec![self]
    }

    fn place(&self, at: u64, _: u64) -> Option<Place> {
        Some(Place { file: 0, at })
    }

    fn begin_write(&mut self, at: u64, len: u64) -> io::Result<Option<Place>> {
        self.check_reaches(at + len).map(|()| Some(Place { file: 0, at }))
    }

    fn begin_flush(&mut self) -> io::Result<Option<Flush>> {
        self.begin_sync().map(|sync| Some(Flush { file: 0, sync, is_map_written: false }))
    }

    fn synced(&mut self, flush: &mut Flush, done: io::Result<()>) -> io::Result<bool> {
        flush.sync.end(done).map(|()| false)
    }

    fn discard(&mut self, stretch: Stretch) -> io::Result<()> {
        HostFile::discard(self, stretch)
    }
}
