//! Memory in a file without a name (memfd).
#![allow(unsafe_code)]

use std::fs::File;

use rustix::fs::MemfdFlags;
use rustix::mm::Advice;

use crate::error::{Error, Result};

/// Creates a memfd of `len` bytes of zeros.
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

/// Disables transparent huge pages on partially filled bases. Before Linux 6.4 khugepaged would fill their
/// holes with zeros.
pub(crate) fn never_huge(start: *mut u8, len: u64) {
    // SAFETY: advice about a new mapping does not change its content. A kernel without huge pages refuses it,
    // and makes none.
    let _ = unsafe { rustix::mm::madvise(start.cast(), len as usize, Advice::LinuxNoHugepage) };
}
