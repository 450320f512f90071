//! Finds the pages of one chunk that a memfd has. Both calls examine the chunk's pages alone.
//!
//! ```text
//!   mincore(2)            the chunk's pages that are in memory, by one call
//!   lseek(2), SEEK_DATA   a page that is not: swapped out, or a hole
//! ```
//!
//! `SEEK_HOLE` would walk from page to page up to the next hole under the file's lock
//! (`mapping_seek_hole_data` of mm/filemap.c). In a base without holes, it would walk through all of it.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::Range;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::memory::PAGE;

/// A mapping of a memfd for `mincore` alone. It is private and without access, so it does not keep the file
/// from being sealed.
#[derive(Debug)]
pub(crate) struct Residence {
    start: *mut u8,
    len: u64,
}

// SAFETY: no thread reads from or writes to the mapping; only the kernel gets its address.
unsafe impl Send for Residence {}
// SAFETY: as above.
unsafe impl Sync for Residence {}

impl Residence {
    /// Maps the first `len` bytes of a memfd.
    ///
    /// # Errors
    /// The host refuses the mapping.
    pub(crate) fn of(memfd: &File, len: u64) -> rustix::io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { rustix::mm::mmap(null, len as usize, ProtFlags::empty(), flags, memfd, 0) }?;
        let residence = Self { start: start.cast(), len };
        // SAFETY: the mapping has no content of its own, so a forked process does not need it.
        unsafe { rustix::mm::madvise(start, len as usize, Advice::LinuxDontFork) }?;
        Ok(residence)
    }

    /// Whether the memfd has every page of `chunk`. `scratch` has at least a byte for each page.
    ///
    /// # Errors
    /// The host does not tell.
    pub(crate) fn has_all(
        &self,
        memfd: &File,
        chunk: &Range<u64>,
        scratch: &mut [u8],
    ) -> rustix::io::Result<bool> {
        let pages = (chunk.end - chunk.start).div_ceil(PAGE) as usize;
        let resident = &mut scratch[..pages];
        self.ask(chunk, resident);
        for (page, is_resident) in (chunk.start..).step_by(PAGE as usize).zip(resident) {
            if *is_resident & 1 == 0 && !is_data(memfd, page)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sets the lowest bit for each page that is in memory, and clears all bits if the call fails.
    ///
    /// The kernel sets every bit for a caller that neither owns nor may write the file (`can_do_mincore` of
    /// mm/mincore.c): a hole would count as a page then. Both owners of a base pass that check: this process
    /// made the memfd, or the pager changed its mode, which takes the same ownership.
    fn ask(&self, chunk: &Range<u64>, resident: &mut [u8]) {
        assert!(chunk.start.is_multiple_of(PAGE) && chunk.start <= chunk.end && chunk.end <= self.len);
        let len = (chunk.end - chunk.start) as usize;
        // SAFETY: the range lies in the mapping, and `resident` has a byte for each of its pages.
        let told = unsafe {
            let start = self.start.add(chunk.start as usize);
            libc::mincore(start.cast(), len, resident.as_mut_ptr())
        };
        if told != 0 {
            resident.fill(0);
        }
    }
}

impl Drop for Residence {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this object, and no pointer into it leaves this module.
        let _ = unsafe { rustix::mm::munmap(self.start.cast(), self.len as usize) };
    }
}

/// Whether a page is data and no hole.
fn is_data(memfd: &File, page: u64) -> rustix::io::Result<bool> {
    match seek(memfd, SeekFrom::Data(page)) {
        Ok(data) => Ok(data == page),
        Err(Errno::NXIO) => Ok(false),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::memory::files::memfd::fresh;
    use crate::memory::files::sealing::seal;

    #[test]
    fn chunk_with_a_hole_anywhere_lacks_a_page() {
        let memfd = fresh(8 * PAGE).unwrap();
        let residence = Residence::of(&memfd, 8 * PAGE).unwrap();
        let mut scratch = [0xff; 8];
        let mut has_all = |pages: Range<u64>| {
            let chunk = pages.start * PAGE..pages.end * PAGE;
            residence.has_all(&memfd, &chunk, &mut scratch).unwrap()
        };
        assert!(!has_all(0..4), "the file is empty");
        for page in [0, 1, 3, 4, 5] {
            memfd.write_all_at(&[7; PAGE as usize], page * PAGE).unwrap();
        }
        assert!(has_all(0..2) && has_all(3..6) && has_all(4..4));
        assert!(!has_all(0..4) && !has_all(2..3) && !has_all(4..8) && !has_all(7..8));
        // A writable mapping would keep the file from being sealed.
        seal(&memfd).unwrap();
    }

    /// Pages that `mincore` does not show are looked up in the file, one after another.
    #[test]
    fn page_that_is_not_in_memory_is_looked_for_in_the_file() {
        let memfd = fresh(4 * PAGE).unwrap();
        memfd.write_all_at(&[7; 2 * PAGE as usize], PAGE).unwrap();
        let found = [0, 1, 2, 3].map(|page| is_data(&memfd, page * PAGE).unwrap());
        assert_eq!(found, [false, true, true, false]);
    }
}
