//! Has memory in place before anyone touches it.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::Range;

use rustix::mm::Advice;

use super::backing::{Backing, OtherPages};
use super::populated::data_ranges;
use super::ram::GuestRam;
use crate::error::{Error, Result};

/// Has the kernel make page-table entries for a range of offsets, and read what is not in the page cache (Linux 5.14).
///
/// # Errors
/// The kernel cannot do that, or a page cannot be read.
pub fn populate(ram: &GuestRam, range: &Range<u64>) -> Result<()> {
    let (start, len) = (ram.host_address_of(range.start), range.end - range.start);
    // SAFETY: the range lies in the reservation; what is read there stays as it is.
    unsafe { rustix::mm::madvise(start.cast(), len as usize, Advice::LinuxPopulateRead) }
        .map_err(|errno| Error::host(format!("populate {} KiB of guest memory", len >> 10), errno))
}

/// Memory of its own with all that is in `base`, as long as that, and with `over` over it: what a restore would be that maps no file.
///
/// # Errors
/// The host refuses memory, or a file cannot be read.
pub fn read_whole(len: u64, base: &File, over: Option<&OtherPages>) -> Result<GuestRam> {
    let failed = |source| Error::host("read guest memory", source);
    let ram = GuestRam::reserve(len)?;
    Backing::Fresh.map(&ram)?;
    for range in data_ranges(base, len).map_err(failed)? {
        ram.copy_from(range, base).map_err(failed)?;
    }
    if let Some(over) = over {
        over.pages.runs().try_for_each(|run| ram.copy_from(run, &over.file)).map_err(failed)?;
    }
    Ok(ram)
}
