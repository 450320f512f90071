//! What tests of memory that is filled on touch share, in this module and above it.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};

use rustix::io::Errno;

use super::PAGE;
use super::ram::GuestRam;
use crate::memory::files::memfd::fresh;
use crate::sync::lock;

/// Makes the readers of a page source hang for as long as a test wants.
#[derive(Debug, Default)]
pub struct Hangs {
    now: Mutex<bool>,
    changed: Condvar,
    seen: AtomicBool,
}

impl Hangs {
    /// Makes every reader hang that passes from now on.
    pub fn begin(&self) {
        self.seen.store(false, Ordering::SeqCst);
        *lock(&self.now) = true;
    }

    /// Lets readers pass that come from now on. Those that hang stay.
    pub fn end_for_others(&self) {
        *lock(&self.now) = false;
    }

    /// Lets all readers pass.
    pub fn end(&self) {
        self.end_for_others();
        self.changed.notify_all();
    }

    /// Whether the reader that came last hangs, or did.
    pub fn seen(&self) -> bool {
        self.seen.load(Ordering::SeqCst)
    }

    /// Hangs if it has to. Readers call it before they read.
    pub fn pass(&self) {
        let now = lock(&self.now);
        self.seen.store(*now, Ordering::SeqCst);
        drop(self.changed.wait_while(now, |hangs| *hangs).unwrap());
    }
}

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
