//! Maps guest memory in before the guest touches it.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use rustix::mm::Advice;

use crate::error::{Error, Result};
use crate::memory::lazy::prefetch::{PageRanges, PrefetchProgress, ahead};
use crate::memory::ram::GuestRam;

/// Populates the page tables of these ranges, on another thread. Memory is mapped from files, and stays
/// mapped until the end.
///
/// # Errors
/// The host gives no thread.
pub fn populate(ram: &GuestRam, runs: &PageRanges) -> Result<Arc<PrefetchProgress>> {
    let ram = ram.clone();
    ahead(runs, move |steps| steps.each(|range| map_in(&ram, range)))
}

/// Populates the page tables of a range: the kernel reads what its page cache lacks (MADV_POPULATE_READ,
/// Linux 5.14).
///
/// # Errors
/// The kernel cannot do that, or a page cannot be read.
pub fn map_in(ram: &GuestRam, range: Range<u64>) -> Result<()> {
    advise(ram, range, Advice::LinuxPopulateRead)
}

/// Gives the VM pages of its own, as a write to each of them would, with the content that they have
/// (MADV_POPULATE_WRITE, Linux 5.14).
///
/// # Errors
/// The kernel cannot do that, or has no memory.
pub fn copy_in(ram: &GuestRam, range: Range<u64>) -> Result<()> {
    advise(ram, range, Advice::LinuxPopulateWrite)
}

fn advise(ram: &GuestRam, Range { start, end }: Range<u64>, advice: Advice) -> Result<()> {
    let (at, len) = (ram.host_address_of(start), (end - start) as usize);
    // SAFETY: the range is guest memory, which is mapped as long as `ram` lives. To populate pages changes no
    // content.
    let done = unsafe { rustix::mm::madvise(at.cast(), len, advice) };
    done.map_err(|errno| Error::host(format!("populate {} KiB of guest memory", len >> 10), errno))
}
