//! The other end of a terminal: a VM's console, or a command in a guest.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use super::is_later;
use crate::failure::Failure;

/// Output that came.
#[derive(Debug, Default)]
pub(crate) struct Received {
    pub(crate) output: Vec<u8>,
    /// For standard error.
    pub(crate) error: Vec<u8>,
    /// Whether no more follows.
    pub(crate) is_at_end: bool,
}

/// The other end of a terminal. Its descriptors do not block.
pub(crate) trait Remote {
    /// The descriptor from which output comes.
    fn output(&self) -> BorrowedFd<'_>;

    /// The descriptor that takes input. `None`: none is taken.
    fn input(&self) -> Option<BorrowedFd<'_>>;

    /// Takes what has come.
    ///
    /// # Errors
    /// The other end speaks another language.
    fn receive(&mut self) -> Result<Received, Failure>;

    /// Sends bytes. Returns how many were taken.
    ///
    /// # Errors
    /// `WouldBlock`, or nobody reads any more.
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Whether bytes that were taken have not left yet: `send` goes on with them.
    fn is_sending(&self) -> bool {
        false
    }

    /// Whether the command has ended, so that its last output is on its way. `None`: no answer comes within a
    /// second.
    fn has_ended(&self) -> Option<bool> {
        Some(false)
    }

    /// Tells that no more input follows. Later calls have no effect.
    fn end_input(&mut self);
}

impl Remote for &UnixStream {
    fn output(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn receive(&mut self) -> Result<Received, Failure> {
        let mut output = vec![0; 16 << 10];
        let is_at_end = match self.read(&mut output) {
            Ok(count) => {
                output.truncate(count);
                count == 0
            }
            Err(error) => {
                output.clear();
                !is_later(&error)
            }
        };
        Ok(Received { output, is_at_end, ..Received::default() })
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write(bytes)
    }

    fn end_input(&mut self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}
