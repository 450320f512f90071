//! Descriptors that this program inherits, and those whose readiness tasks wait for.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use tokio::io::unix::AsyncFd;

/// Registers a descriptor, which must not block, with the runtime.
pub fn register(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd gives the same open descriptor until it is dropped, and AsyncFd drops it last.
    Ok(unsafe { AsyncFd::register(descriptor) }?)
}

/// Takes a descriptor that the command line names. Programs that this one starts do not inherit it.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers, and fails for a number without an open descriptor.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and its only other name is the command line, which is read once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
