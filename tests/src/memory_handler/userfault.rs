//! The userfaultfd of another process (linux/userfaultfd.h), as a handler uses it.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

const COPY: libc::c_ulong = 0xc028_aa03;
const ZEROPAGE: libc::c_ulong = 0xc020_aa04;
const PAGEFAULT: u8 = 0x12;
const REMOVE: u8 = 0x15;

/// A message of a userfaultfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A thread waits for the page at an address.
    Fault(u64),
    /// A range was dropped, from its start to its end.
    Removed(u64, u64),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Userfault(pub(super) OwnedFd);

impl Userfault {
    /// Reads a message, if there is one.
    ///
    /// # Panics
    /// It is of a kind that no VM sends.
    pub fn read(&self) -> io::Result<Option<Message>> {
        let mut message = [0; 32];
        match rustix::io::read(&self.0, &mut message) {
            Ok(_) => {}
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        let word = |at: usize| u64::from_ne_bytes(message[at..at + 8].try_into().expect("8 bytes"));
        Ok(Some(match message[0] {
            PAGEFAULT => Message::Fault(word(16)),
            REMOVE => Message::Removed(word(8), word(16)),
            other => panic!("a message of kind {other:#x}"),
        }))
    }

    /// Copies bytes to a missing page. Returns whether the page is there now.
    pub fn copy(&self, to: u64, from: &[u8]) -> io::Result<bool> {
        self.fill(COPY, &mut [to, from.as_ptr() as u64, from.len() as u64, 0, 0])
    }

    /// Maps the zero page for a missing page. Returns whether the page is there now.
    pub fn zero(&self, at: u64, len: u64) -> io::Result<bool> {
        self.fill(ZEROPAGE, &mut [at, len, 0, 0])
    }

    fn fill(&self, call: libc::c_ulong, argument: &mut [u64]) -> io::Result<bool> {
        // SAFETY: the argument has the words of the call's structure, and names a source that is long enough.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), call as libc::Ioctl, argument.as_mut_ptr()) } {
            0 => Ok(true),
            _ => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::EEXIST) => Ok(true),
                // An event has to be read first.
                error if error.raw_os_error() == Some(libc::EAGAIN) => Ok(false),
                error => Err(error),
            },
        }
    }
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
