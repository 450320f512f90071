//! Processes that a VM's starting process leaves beside it. They are no client's and no terminal's.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::RawFd;

use crate::failure::Failure;

/// Runs `body` in a process of its own, which has the name `name` and no descriptors but `kept`: the claim's
/// lock would keep the VM alive. This process has one thread.
///
/// # Errors
/// The host refuses a process. `act` says for what it was.
pub(super) fn start(
    name: &CStr,
    act: &'static str,
    kept: &[RawFd],
    body: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    // SAFETY: the process has one thread, so no lock of the heap is held in the child.
    match unsafe { libc::fork() } {
        -1 => Err(Failure::system(act, io::Error::last_os_error())),
        0 => {
            // This process has no one to tell a failure.
            let _ = isolate(name, kept).map(|()| body());
            // SAFETY: ends this process, which has nothing to flush.
            unsafe { libc::_exit(0) }
        }
        _ => Ok(()),
    }
}

/// Leaves terminal and working directory, and closes all other descriptors.
fn isolate(name: &CStr, kept: &[RawFd]) -> io::Result<()> {
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(name);
    rustix::process::chdir("/")?;
    for (first, last) in gaps(kept) {
        // SAFETY: this process uses none of these descriptors.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// The ranges of descriptors, from 3 on, that `kept` leaves out.
fn gaps(kept: &[RawFd]) -> Vec<(libc::c_uint, libc::c_uint)> {
    let mut kept: Vec<_> = kept.iter().map(|number| number.cast_unsigned()).collect();
    kept.sort_unstable();
    let firsts = [3].into_iter().chain(kept.iter().map(|number| number + 1));
    let lasts = kept.iter().map(|number| number - 1).chain([libc::c_uint::MAX]);
    firsts.zip(lasts).filter(|(first, last)| first <= last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_between_the_kept_ones_are_closed() {
        let most = libc::c_uint::MAX;
        assert_eq!(gaps(&[]), [(3, most)]);
        assert_eq!(gaps(&[9, 5, 6]), [(3, 4), (7, 8), (10, most)]);
        assert_eq!(gaps(&[3]), [(4, most)]);
    }
}
