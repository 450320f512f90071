//! Reads bytes of memory for the sake of how long that takes, and asks whether they would have to come from a disk.
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

/// How long it takes to read the byte at an offset: what the clock takes, and what a page fault takes where there is one. Memory that
/// cannot be had is a signal.
///
/// # Panics
/// The offset is beyond the end, or nothing is mapped yet.
#[must_use]
pub fn touch(ram: &GuestRam, offset: u64) -> Duration {
    assert!(offset < ram.len(), "{offset:#x} is beyond {:#x} bytes of memory", ram.len());
    ram.with_base(|_| ());
    let address = ram.host_address_of(offset);
    let before = Instant::now();
    // SAFETY: the byte lies in memory that is mapped, as was looked for. A guest may write to it meanwhile, hence volatile.
    black_box(unsafe { address.read_volatile() });
    before.elapsed()
}

/// How many of these pages, by their offsets, of `len` bytes of a file are in the page cache.
///
/// # Errors
/// The host refuses to map it.
pub fn cached(file: &Arc<File>, len: u64, pages: impl IntoIterator<Item = u64>) -> Result<u64> {
    let ram = GuestRam::reserve(len)?;
    Backing::Private { base: Arc::clone(file), pages: None }.map(&ram)?;
    let mut count = 0;
    for page in pages {
        let (start, mut resident) = (ram.host_address_of(page), 0);
        // SAFETY: the page lies in the mapping, which is only asked about, and the answer for one page is one byte.
        if unsafe { libc::mincore(start.cast(), PAGE as usize, &raw mut resident) } != 0 {
            return Err(Error::host("ask what is in the page cache", io::Error::last_os_error()));
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
    fn what_a_memfd_holds_is_in_the_page_cache_and_its_holes_are_not() {
        let file = Arc::new(fresh(1 << 20).unwrap());
        file.write_all_at(&[1; 2 * PAGE as usize], 8 * PAGE).unwrap();
        let pages = |range: std::ops::Range<u64>| range.map(|page| page * PAGE);
        assert_eq!(cached(&file, 1 << 20, pages(0..256)).unwrap(), 2);
        assert_eq!(cached(&file, 1 << 20, pages(9..100)).unwrap(), 1);
        let ram = GuestRam::reserve(1 << 20).unwrap();
        Backing::Private { base: Arc::clone(&file), pages: None }.map(&ram).unwrap();
        pages(0..4).for_each(|page| assert!(touch(&ram, page) < Duration::from_secs(60)));
        assert_eq!(cached(&file, 1 << 20, pages(0..4)).unwrap(), 4, "it was read");
    }
}
