//! A backend for tests and fuzzing: one end of a socket that keeps frames apart.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use super::backend::Backend;
use super::pieces::Pieces;

/// One end of a wire.
#[derive(Debug)]
pub(super) struct Wire(pub UnixDatagram);

impl Backend for Wire {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn offloads(&self) -> bool {
        true
    }

    fn receive(&mut self, mut into: Pieces<'_>) -> io::Result<usize> {
        into.read_from(self.descriptor())
    }

    fn send(&mut self, frame: Pieces<'_>) -> io::Result<()> {
        frame.write_to(self.descriptor()).map(drop)
    }
}

/// Makes a wire for the device, and its other end. Frames that are not read fill the wire.
pub(super) fn wire() -> (Wire, UnixDatagram) {
    let mut fds = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the array has room for two descriptors, which nothing else owns.
    let [device, other] = unsafe {
        assert_eq!(libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()), 0);
        fds.map(|fd| UnixDatagram::from(OwnedFd::from_raw_fd(fd)))
    };
    device.set_nonblocking(true).unwrap();
    other.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    (Wire(device), other)
}
