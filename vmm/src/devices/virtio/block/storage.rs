//! What a disk's bytes are kept in. Stretches have been checked against the capacity before they come here; that the storage
//! still has them is its own to find out.

use std::io;

use super::layer::Overlay;
use super::request::Stretch;
use crate::devices::virtio::chain::Buffers;

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
    fn write_zeroes(&mut self, stretch: Stretch) -> io::Result<()>;

    /// Gives up what a stretch holds, and its place on the host if that can be.
    fn discard(&mut self, stretch: Stretch) -> io::Result<()> {
        self.write_zeroes(Stretch { unmap: true, ..stretch })
    }

    /// What was written before is in the files, for whoever opens or copies them.
    fn settle(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Whether nothing was written since [`Storage::settle`] last came to a good end.
    fn is_settled(&self) -> bool {
        true
    }

    /// The storage, where what this VM wrote is in a layer.
    fn overlay(&self) -> Option<&Overlay> {
        None
    }
}
