//! Signals to process groups, real-time ones too, which rustix lacks.
#![allow(unsafe_code)]

use std::io;

use rustix::process::Pid;

/// The last signal.
pub const LAST: i32 = 64;

/// Sends a signal to all processes of a group.
pub fn send(group: Pid, signal: i32) -> io::Result<()> {
    // SAFETY: kill touches no memory.
    let result = unsafe { libc::kill(-group.as_raw_nonzero().get(), signal) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
