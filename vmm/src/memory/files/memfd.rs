//! Memory in a file without a name.
#![allow(unsafe_code)]

use std::fs::File;

use rustix::fs::MemfdFlags;
use rustix::mm::Advice;

use crate::error::{Error, Result};

/// Memory in a file without a name: nothing yet, `len` bytes long.
///
/// # Errors
/// The host refuses it.
pub fn fresh(len: u64) -> Result<File> {
    let refused = |source| Error::host(format!("create {} MiB of guest memory", len >> 20), source);
    let memfd = rustix::fs::memfd_create("volt-ram", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(refused)?;
    rustix::fs::ftruncate(&memfd, len).map_err(refused)?;
    Ok(memfd.into())
}

/// Has nobody make huge pages of a base with holes for what is not there yet. Before Linux 6.4 khugepaged would fill those with zeros.
pub(crate) fn never_huge(start: *mut u8, len: u64) {
    // SAFETY: advice about a mapping that was just made changes nothing that can be seen in it. A kernel without huge pages refuses
    // it, and makes none.
    let _ = unsafe { rustix::mm::madvise(start.cast(), len as usize, Advice::LinuxNoHugepage) };
}
