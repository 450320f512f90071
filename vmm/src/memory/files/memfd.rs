//! Memory in a file without a name (memfd).
#![allow(unsafe_code)]

use std::fs::File;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::Advice;

use crate::error::{Error, Result};

/// Creates a memfd of `len` bytes of zeros.
///
/// # Errors
/// The host refuses it.
pub fn fresh(len: u64) -> Result<File> {
    memfd("volt-ram", len, MemfdFlags::empty())
        .map_err(|source| Error::host(format!("create {} MiB of guest memory", len >> 20), source))
}

/// Creates a memfd of `len` bytes of zeros in huge pages. Mapping it takes them from the host's pool.
///
/// # Errors
/// The host has none.
pub fn fresh_huge(len: u64) -> Result<File> {
    memfd("volt-huge-ram", len, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB)
        .map_err(|errno| lacks_huge_pages(len, errno))
}

/// The error for `len` bytes of guest memory in huge pages that the host does not have.
pub(crate) fn lacks_huge_pages(len: u64, errno: Errno) -> Error {
    let act = format!(
        "take {} huge pages of 2 MiB for guest memory: raise /proc/sys/vm/nr_hugepages (HugePages_Free in \
         /proc/meminfo tells how many are free), or use pages of 4 KiB",
        len >> 21
    );
    Error::host(act, errno)
}

/// Creates a memfd of `len` bytes of zeros, whose length never changes.
///
/// # Errors
/// The host refuses it.
pub fn of_fixed_length(name: &str, len: u64) -> rustix::io::Result<File> {
    let memfd = memfd(name, len, MemfdFlags::empty())?;
    rustix::fs::fcntl_add_seals(&memfd, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(memfd)
}

fn memfd(name: &str, len: u64, flags: MemfdFlags) -> rustix::io::Result<File> {
    let memfd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags)?;
    rustix::fs::ftruncate(&memfd, len)?;
    Ok(memfd.into())
}

/// Disables transparent huge pages on partially filled bases. Before Linux 6.4 khugepaged would fill their
/// holes with zeros.
pub(crate) fn never_huge(start: *mut u8, len: u64) {
    // SAFETY: advice about a new mapping does not change its content. A kernel without huge pages refuses it,
    // and makes none.
    let _ = unsafe { rustix::mm::madvise(start.cast(), len as usize, Advice::LinuxNoHugepage) };
}
