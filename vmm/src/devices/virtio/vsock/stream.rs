//! Transfers between guest memory and a unix socket, without a copy in between.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::devices::virtio::chain::Buffers;

/// Pieces of one call at most (`UIO_MAXIOV`).
const MAX_PIECES: usize = 1024;

/// Fills the front of `to` with at most `max_len` bytes, which is more than 0. Returns 0 at the end of the
/// stream.
pub(super) fn read(stream: &UnixStream, to: &Buffers<'_>, max_len: usize) -> io::Result<usize> {
    let mut pieces = to.iovecs();
    shorten(&mut pieces, max_len);
    let read = uninterrupted(|| {
        // SAFETY: the pieces lie in guest memory, which stays mapped while `to` borrows it and which nothing
        // in this process owns; the kernel writes there as a device would.
        unsafe { libc::readv(stream.as_raw_fd(), pieces.as_ptr(), pieces.len() as _) }
    })?;
    to.written(read);
    Ok(read)
}

/// Sends from the front of `from` as much as the socket takes.
pub(super) fn write(stream: &UnixStream, from: &Buffers<'_>) -> io::Result<usize> {
    send(stream, from.iovecs())
}

/// Sends from two slices as much as the socket takes.
pub(super) fn write_two(stream: &UnixStream, (one, other): (&[u8], &[u8])) -> io::Result<usize> {
    let piece =
        |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    send(stream, vec![piece(one), piece(other)])
}

/// Returns whether the other end is closed in both directions, not only for sending.
pub(super) fn is_closed(stream: &UnixStream) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::empty())];
    // This cannot fail with one descriptor and no timeout. If it did, the guest would learn of the rest
    // later.
    let _ = poll(&mut polled, Some(&Timespec::default()));
    polled[0].revents().contains(PollFlags::HUP)
}

/// Sends the pieces, which are readable until it returns: borrowed guest memory, or slices.
fn send(stream: &UnixStream, mut pieces: Vec<libc::iovec>) -> io::Result<usize> {
    pieces.truncate(MAX_PIECES);
    // SAFETY: a zeroed message has no name, pieces or control data; its padding differs between C libraries.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_mut_ptr();
    message.msg_iovlen = pieces.len() as _;
    // SAFETY: the message and its pieces live until the call returns, and the kernel only reads them.
    uninterrupted(|| unsafe { libc::sendmsg(stream.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) })
}

fn shorten(pieces: &mut Vec<libc::iovec>, mut max_len: usize) {
    pieces.truncate(MAX_PIECES);
    for piece in pieces.iter_mut() {
        piece.iov_len = piece.iov_len.min(max_len);
        max_len -= piece.iov_len;
    }
    pieces.retain(|piece| piece.iov_len > 0);
}

fn uninterrupted(mut call: impl FnMut() -> libc::ssize_t) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(count) => return Ok(count),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}
