//! Packets with descriptors, as another process may send them.

use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

/// Most descriptors beside a packet.
const MOST: usize = 24;

/// Connects to a socket that keeps packets apart.
///
/// # Panics
/// Nothing listens at `path`.
#[must_use]
pub fn connect(path: &Path) -> OwnedFd {
    let address = SocketAddrUnix::new(path).expect("a short path");
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let socket = socket.expect("a socket");
    rustix::net::connect(&socket, &address).expect("a process that listens");
    socket
}

/// Sends bytes with descriptors, without waiting for room.
///
/// # Errors
/// The other end is gone, or has no room.
pub fn send(socket: impl AsFd, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let files = &files[..files.len().min(MOST)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        rights.push(SendAncillaryMessage::ScmRights(files));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut rights, flags)?;
    Ok(())
}

/// Receives one packet.
///
/// # Panics
/// The other end is gone.
pub fn receive(socket: impl AsFd) -> impl Read {
    let mut bytes = vec![0; 4096];
    let (len, _) = rustix::net::recv(socket, &mut bytes[..], RecvFlags::empty()).expect("a packet");
    bytes.truncate(len);
    io::Cursor::new(bytes)
}
