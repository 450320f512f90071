//! Times reads of memory, and counts pages in the page cache.
#![allow(unsafe_code)]

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::backing::Backing;
use crate::memory::ram::GuestRam;

/// Reads the byte at an offset. Returns the time, which includes reading the clock and a page fault.
/// Unavailable memory raises SIGSEGV or SIGBUS.
///
/// # Panics
/// Panics if the offset is beyond the end, or if no memory is mapped.
#[must_use]
pub fn touch(ram: &GuestRam, offset: u64) -> Duration {
    assert!(offset < ram.len(), "{offset:#x} is beyond {:#x} bytes of memory", ram.len());
    ram.with_base(|_| ());
    let address = ram.host_address_of(offset);
    let before = Instant::now();
    // SAFETY: the byte lies in mapped memory, as the checks above ensure. The read is volatile, because a
    // guest may write meanwhile.
    black_box(unsafe { address.read_volatile() });
    before.elapsed()
}

/// Counts the pages at these offsets, in the first `len` bytes of a file, that are in the page cache.
///
/// # Errors
/// Returns an error if the host refuses to map the file.
pub fn cached(file: &Arc<File>, len: u64, pages: impl IntoIterator<Item = u64>) -> Result<u64> {
    let ram = GuestRam::reserve(len)?;
    Backing::Private { base: Arc::clone(file), pages: None }.map(&ram)?;
    let mut count = 0;
    for page in pages {
        let (start, mut resident) = (ram.host_address_of(page), 0);
        // SAFETY: the page lies in the mapping, and the result for one page is one byte.
        if unsafe { libc::mincore(start.cast(), PAGE as usize, &raw mut resident) } != 0 {
            return Err(Error::host("query the page cache", io::Error::last_os_error()));
        }
        count += u64::from(resident & 1);
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::memory::files::memfd::fresh;

    #[test]
    fn data_of_a_memfd_is_in_the_page_cache_and_its_holes_are_not() {
        let file = Arc::new(fresh(1 << 20).unwrap());
        file.write_all_at(&[1; 2 * PAGE as usize], 8 * PAGE).unwrap();
        let pages = |range: std::ops::Range<u64>| range.map(|page| page * PAGE);
        assert_eq!(cached(&file, 1 << 20, pages(0..256)).unwrap(), 2);
        assert_eq!(cached(&file, 1 << 20, pages(9..100)).unwrap(), 1);
        let ram = GuestRam::reserve(1 << 20).unwrap();
        Backing::Private { base: Arc::clone(&file), pages: None }.map(&ram).unwrap();
        pages(0..4).for_each(|page| assert!(touch(&ram, page) < Duration::from_secs(60)));
        assert_eq!(cached(&file, 1 << 20, pages(0..4)).unwrap(), 4, "touched pages");
    }
}
