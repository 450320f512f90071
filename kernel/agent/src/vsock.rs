//! Sockets of vsock that listen.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const BACKLOG: i32 = 64;

/// The length of a vsock address.
const ADDRESS: libc::socklen_t = mem::size_of::<libc::sockaddr_vm>() as libc::socklen_t;

/// Listens on a port, without blocking.
pub fn listen(port: u32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the call takes no pointers.
    let number = checked(unsafe { libc::socket(libc::AF_VSOCK, kind, 0) })?;
    // SAFETY: the kernel has just made this descriptor, and nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    let address = libc::sockaddr_vm {
        svm_family: libc::AF_VSOCK as libc::sa_family_t,
        svm_port: port,
        svm_cid: libc::VMADDR_CID_ANY,
        ..zeroed_address()
    };
    // SAFETY: the address lives through the call, and the length is its own.
    checked(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), ADDRESS) })?;
    // SAFETY: the call takes no pointers.
    checked(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) })?;
    Ok(socket)
}

fn zeroed_address() -> libc::sockaddr_vm {
    // SAFETY: all zero bytes are a value of this structure of integers.
    unsafe { mem::zeroed() }
}

/// Accepts a connection, and tells its peer's context id.
pub fn accept(socket: &OwnedFd) -> io::Result<(OwnedFd, u32)> {
    let mut address = zeroed_address();
    let mut length = ADDRESS;
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: both pointers live through the call, and the length is the address's own.
    let accepted =
        unsafe { libc::accept4(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut length, flags) };
    // SAFETY: the kernel has just made this descriptor, and nobody else has it.
    let stream = unsafe { OwnedFd::from_raw_fd(checked(accepted)?) };
    Ok((stream, address.svm_cid))
}

fn checked(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
