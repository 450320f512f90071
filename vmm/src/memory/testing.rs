//! Helpers for tests of memory that page faults fill.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};

use rustix::io::Errno;

use super::PAGE;
use super::ram::GuestRam;
use crate::memory::files::memfd::fresh;
use crate::sync::lock;

/// Makes readers of a page source hang until a test releases them.
#[derive(Debug, Default)]
pub struct Hangs {
    now: Mutex<bool>,
    changed: Condvar,
    seen: AtomicBool,
}

impl Hangs {
    /// Makes every later reader hang.
    pub fn begin(&self) {
        self.seen.store(false, Ordering::SeqCst);
        *lock(&self.now) = true;
    }

    /// Lets later readers pass. Those that hang stay.
    pub fn end_for_others(&self) {
        *lock(&self.now) = false;
    }

    /// Lets all readers pass.
    pub fn end(&self) {
        self.end_for_others();
        self.changed.notify_all();
    }

    /// Whether the last reader hung.
    pub fn seen(&self) -> bool {
        self.seen.load(Ordering::SeqCst)
    }

    /// Hangs if a test asks for it. Readers call this before they read.
    pub fn pass(&self) {
        let now = lock(&self.now);
        self.seen.store(*now, Ordering::SeqCst);
        drop(self.changed.wait_while(now, |hangs| *hangs).unwrap());
    }
}

/// Makes the kernel read a word of guest memory, as KVM and system calls do: they return an error where a
/// thread would get a signal.
pub fn kernel_reads(ram: &GuestRam, at: u64) -> rustix::io::Result<u64> {
    let file = fresh(PAGE).unwrap();
    let mut bytes = [0; 8];
    // SAFETY: the kernel reads from guest memory, and reports what it cannot read.
    let done = unsafe { libc::pwrite(file.as_raw_fd(), ram.host_address_of(at).cast(), 8, 0) };
    if done != 8 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap());
    }
    rustix::io::pread(&file, &mut bytes, 0)?;
    Ok(u64::from_le_bytes(bytes))
}
