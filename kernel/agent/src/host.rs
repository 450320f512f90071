//! Connections to programs on the host, over vsock.
#![allow(unsafe_code)]

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Makes a socket for a stream.
fn stream_socket(family: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: socket touches no memory, and a new descriptor has no other owner.
    unsafe {
        let made = libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        if made < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(made)) }
    }
}

/// The result of a system call.
fn done(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Connects to a vsock port of the host. Connecting, and each later read and write, may take so long.
pub fn connect(port: u32, patience: Duration) -> io::Result<OwnedFd> {
    /// `SO_VM_SOCKETS_CONNECT_TIMEOUT` of linux/vm_sockets.h.
    const CONNECT_TIMEOUT: libc::c_int = 6;
    let socket = stream_socket(libc::AF_VSOCK)?;
    let time =
        libc::timeval { tv_sec: patience.as_secs().cast_signed(), tv_usec: patience.subsec_micros().into() };
    let limits = [
        (libc::AF_VSOCK, CONNECT_TIMEOUT),
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
    ];
    for (level, option) in limits {
        let len = size_of_val(&time) as libc::socklen_t;
        // SAFETY: the kernel reads a time of this length, which lives through the call.
        done(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const time).cast(), len) })?;
    }
    // SAFETY: an address of zeros is valid. The kernel reads it, with this length, during the call.
    unsafe {
        let mut host: libc::sockaddr_vm = zeroed();
        host.svm_family = libc::AF_VSOCK as libc::sa_family_t;
        (host.svm_cid, host.svm_port) = (libc::VMADDR_CID_HOST, port);
        let len = size_of_val(&host) as libc::socklen_t;
        done(libc::connect(socket.as_raw_fd(), (&raw const host).cast(), len))?;
    }
    Ok(socket)
}

/// Tells the other end of a stream that no more comes.
pub fn end_writing(stream: impl AsFd) -> io::Result<()> {
    // SAFETY: shutdown touches no memory.
    done(unsafe { libc::shutdown(stream.as_fd().as_raw_fd(), libc::SHUT_WR) })
}
