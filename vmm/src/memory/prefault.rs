//! Maps guest memory in before the guest touches it.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use rustix::mm::Advice;

use crate::error::{Error, Result};
use crate::memory::lazy::prefetch::{Progress, Runs, ahead};
use crate::memory::ram::GuestRam;

/// Maps these ranges of memory in, which is all mapped already, and lies in files. It stays mapped until this is over.
///
/// # Errors
/// The host gives no thread.
pub fn populate(ram: &GuestRam, runs: &Runs) -> Result<Arc<Progress>> {
    let ram = ram.clone();
    ahead(runs, move |steps| steps.each(|range| map_in(&ram, range)))
}

/// Maps a range of memory in now: the kernel makes its page-table entries, and reads what is not in its cache (Linux 5.14).
///
/// # Errors
/// The kernel cannot do that, or a page cannot be read.
pub fn map_in(ram: &GuestRam, Range { start, end }: Range<u64>) -> Result<()> {
    let (at, len) = (ram.host_address_of(start), (end - start) as usize);
    // SAFETY: the range is guest memory, which is mapped for as long as there is `ram`. To read pages in changes no content.
    let done = unsafe { rustix::mm::madvise(at.cast(), len, Advice::LinuxPopulateRead) };
    done.map_err(|errno| Error::host(format!("map {} KiB of guest memory in", len >> 10), errno))
}
