//! What a network device is connected to: frames in, frames out.

use std::fmt::Debug;
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;

use super::address::Mac;
use super::pieces::Pieces;

/// A connection that carries Ethernet frames, each with a [`super::header::Header`] in front. It never blocks.
pub(super) trait Backend: Debug + Send {
    /// What is ready to read when there is a frame, and ready to write when there is room for one.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Whether it takes and gives frames whose checksum is missing, and segments too long for the wire.
    fn offloads(&self) -> bool;

    /// The driver took these features, and has this address.
    ///
    /// # Errors
    /// The host cannot do with that.
    fn begin(&mut self, _features: u64, _mac: Mac) -> io::Result<()> {
        Ok(())
    }

    /// Reads a frame, header first, and says how long it is. What there is no room for is lost.
    ///
    /// # Errors
    /// `WouldBlock` when there is none; `UnexpectedEof` when there never will be; what the host says. [`is_gone`] tells whether
    /// the connection has ended; any other error is about this frame, or passes.
    fn receive(&mut self, into: Pieces<'_>) -> io::Result<usize>;

    /// Whether there may be a frame. A backend that can say no saves the device the preparations for a long one.
    fn may_have_frame(&self) -> bool {
        true
    }

    /// Writes a frame, of which the first piece is the header.
    ///
    /// # Errors
    /// `WouldBlock` when there is no room, and nothing of it was written; what the host says.
    fn send(&mut self, frame: Pieces<'_>) -> io::Result<()>;

    /// Writes what it could not write before of frames that it took.
    ///
    /// # Errors
    /// `WouldBlock` when there is still no room for all; what the host says.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Whether a part of a frame that it took waits for [`Backend::flush`].
    fn has_unsent(&self) -> bool {
        false
    }
}

/// Whether an error says that the connection has ended. A tap gives EBADFD when its interface was deleted.
pub(super) fn is_gone(error: &io::Error) -> bool {
    let has_ended = [
        ErrorKind::UnexpectedEof,
        ErrorKind::InvalidData, // a stream out of step stays so
        ErrorKind::BrokenPipe,
        ErrorKind::ConnectionReset,
        ErrorKind::NotConnected,
    ];
    has_ended.contains(&error.kind())
        || matches!(error.raw_os_error(), Some(libc::EBADFD | libc::EBADF | libc::ENODEV | libc::ENXIO))
}
