//! Ranges of guest memory, and of addresses in this process.
#![allow(unsafe_code)]

use std::ptr;

use rustix::mm::{MapFlags, ProtFlags};

/// A region of guest physical memory, and its place in the host range and in the base file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First guest physical address.
    pub gpa: u64,
    /// Length in bytes.
    pub len: u64,
    /// Offset in the reserved range and in the base file.
    pub offset: u64,
}

/// An address range of this process, unmapped when it is dropped.
#[derive(Debug)]
pub struct AddressRange {
    pub(super) start: *mut u8,
    len: usize,
}

// SAFETY: the pointer is only the address of a range; access to what is mapped there goes through vm-memory,
// whose regions are Send and Sync themselves.
unsafe impl Send for AddressRange {}
// SAFETY: as above.
unsafe impl Sync for AddressRange {}

impl AddressRange {
    pub(super) fn reserve(len: usize) -> rustix::io::Result<Self> {
        let (none, private) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, none, private) }?;
        Ok(Self { start: start.cast(), len })
    }

    /// Frees the memory mapped in the range, and keeps the addresses reserved. Userfaultfd calls on them fail
    /// from then on.
    ///
    /// # Errors
    /// The kernel has no memory for the mapping. The range is as before.
    pub fn vacate(&self) -> rustix::io::Result<()> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let (start, len) = (self.start.cast(), self.len);
        // SAFETY: the range belongs to this object and is unused: nothing points into it any more.
        unsafe { rustix::mm::mmap_anonymous(start, len, ProtFlags::empty(), flags) }.map(drop)
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        // SAFETY: the range belongs to this object, with every mapping over it; all that points into it holds
        // an Arc of its owner. Unmapping a mapped range cannot fail.
        let _ = unsafe { rustix::mm::munmap(self.start.cast(), self.len) };
    }
}
