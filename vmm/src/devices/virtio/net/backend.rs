//! Backends of network devices.

use std::fmt::Debug;
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;

use super::pieces::Pieces;
use crate::config::network::Mac;
use crate::error::Result;

/// A connection that carries Ethernet frames, each after a [`super::header::Header`]. It never blocks.
pub(super) trait Backend: Debug + Send {
    /// Returns the descriptor that is readable when there is a frame, and writable when there is room for
    /// one.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Returns whether frames may lack checksums and be longer than the wire allows.
    fn offloads(&self) -> bool;

    /// Starts with the driver's features and address.
    ///
    /// # Errors
    /// The host refuses them.
    fn begin(&mut self, _features: u64, _mac: Mac) -> io::Result<()> {
        Ok(())
    }

    /// Connects anew, after the connection has ended, for the guest with this address. Returns `None` if this
    /// backend never does.
    fn restart(&mut self, _mac: Mac) -> Option<Result<()>> {
        None
    }

    /// Reads a frame, header first. Returns its length. Bytes that do not fit are lost.
    ///
    /// # Errors
    /// `WouldBlock` if there is no frame; `UnexpectedEof` if there never will be; errors of the host.
    /// [`is_gone`] tells whether the connection has ended; any other error is about this frame, or
    /// temporary.
    fn receive(&mut self, into: Pieces<'_>) -> io::Result<usize>;

    /// Shows the next frame, without a header, where the backend has it in memory of its own already. It
    /// stays the next one for [`Backend::receive`]. Returns `None` if the backend has none there, ever: its
    /// frames have to be read to be seen.
    ///
    /// # Errors
    /// As [`Backend::receive`].
    fn peek(&mut self) -> io::Result<Option<&[u8]>> {
        Ok(None)
    }

    /// Drops the frame that [`Backend::peek`] has shown.
    fn skip(&mut self) {}

    /// Returns whether there may be a frame. A backend that can return false saves the device the
    /// preparations for a long frame.
    fn may_have_frame(&self) -> bool {
        true
    }

    /// Writes a frame, whose first piece is the header.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room and nothing was written; errors of the host.
    fn send(&mut self, frame: Pieces<'_>) -> io::Result<()>;

    /// Writes the rest of frames that were written in part.
    ///
    /// # Errors
    /// `WouldBlock` if there is still no room for everything; errors of the host.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Returns whether a part of a frame waits for [`Backend::flush`].
    fn has_unsent(&self) -> bool {
        false
    }
}

/// Returns whether an error means that the connection has ended. A tap gives EBADFD when its interface was
/// deleted.
pub(super) fn is_gone(error: &io::Error) -> bool {
    let has_ended = [
        ErrorKind::UnexpectedEof,
        ErrorKind::InvalidData, // a stream that is out of step stays out of step
        ErrorKind::BrokenPipe,
        ErrorKind::ConnectionReset,
        ErrorKind::NotConnected,
    ];
    has_ended.contains(&error.kind())
        || matches!(error.raw_os_error(), Some(libc::EBADFD | libc::EBADF | libc::ENODEV | libc::ENXIO))
}
