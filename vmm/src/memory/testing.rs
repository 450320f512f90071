//! What tests of memory that is filled on touch share, in this module and above it.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;

use rustix::io::Errno;

use super::PAGE;
use super::backing::fresh;
use super::ram::GuestRam;

/// Has the kernel read a word of guest memory, as it does for KVM and in system calls, which have an error
/// where a thread has a signal.
pub fn kernel_reads(ram: &GuestRam, at: u64) -> rustix::io::Result<u64> {
    let file = fresh(PAGE).unwrap();
    let mut bytes = [0; 8];
    // SAFETY: the kernel reads from guest memory, and says so where it cannot.
    let done = unsafe { libc::pwrite(file.as_raw_fd(), ram.host_address_of(at).cast(), 8, 0) };
    if done != 8 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap());
    }
    rustix::io::pread(&file, &mut bytes, 0)?;
    Ok(u64::from_le_bytes(bytes))
}
