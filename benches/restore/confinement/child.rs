//! Acts that change the process for good, each in a child of its own.
#![allow(unsafe_code)]

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use volt_benches::{OrSay, Result};

/// Lets a child measure an act, which gets the time of the fork. Returns the duration that it tells.
///
/// # Errors
/// The act fails, or the host refuses a process.
pub fn measure(act: impl FnOnce(Instant) -> Result<Duration>) -> Result<Duration> {
    let (mut reader, mut writer) = io::pipe().or_say("make a pipe")?;
    let start = Instant::now();
    // SAFETY: this process has one thread, so no lock of the heap is held in the child, which ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let told = act(start).map_or_else(|error| error, |took| took.as_nanos().to_string());
        let _ = writer.write_all(told.as_bytes());
        // SAFETY: ends the child without what the parent does at its own end.
        unsafe { libc::_exit(0) };
    }
    let forked = if child < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    forked.or_say("make a process")?;
    drop(writer);
    let mut told = String::new();
    let read = reader.read_to_string(&mut told);
    // SAFETY: waits for the child, whose status is not asked for.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    read.or_say("hear from a process")?;
    told.parse().map(Duration::from_nanos).map_err(|_| told)
}
