//! Returns guest memory that the guest does not need to the host. All of it goes through here.
//!
//! In a private mapping, the private page is dropped and the base's content shows again. The base is never
//! touched, because others may share it. In the shared mapping of a memfd, a hole is punched, and the page is
//! zero. Memory in huge pages stays: guests return pages of 4 KiB, which cannot be dropped alone.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;

use rustix::fs::FallocateFlags;
use rustix::mm::Advice;

use super::PAGE;
use super::ram::GuestRam;
use crate::error::{Error, Result};
use crate::memory::own_writes::presence;

/// Returns `len` bytes of guest memory at `gpa`, and discards their content. The caller makes sure that
/// nothing else maps shared memory. Huge pages are not returned: the result is the number of bytes that were.
///
/// # Errors
/// The range is not made of whole pages of RAM, or the host refuses.
pub fn give_back(ram: &GuestRam, gpa: u64, len: u64) -> Result<u64> {
    let failed = |source: io::Error| {
        Error::host(format!("return {} KiB of guest memory at {gpa:#x} to the host", len >> 10), source)
    };
    let invalid = |problem| failed(io::Error::new(io::ErrorKind::InvalidInput, problem));
    if !gpa.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) || len == 0 {
        return Err(invalid("the range is not made of whole pages"));
    }
    let whole = |first: u64, all: u64| gpa >= first && len <= all && gpa - first <= all - len;
    let Some(region) = ram.regions().iter().find(|region| whole(region.gpa, region.len)) else {
        return Err(invalid("the range is not guest memory"));
    };
    let start = region.offset + gpa - region.gpa;
    let end = start + len;
    if ram.is_huge() {
        // The guest may use it again, with its old content.
        return Ok(0);
    }
    let done = ram.with_base(|base| {
        let private_to = base.private_to.clamp(start, end);
        if let Some(presence) = presence(ram.guest()) {
            presence.note_given_back(start..private_to);
        }
        let dropped = drop_private(ram, start..private_to);
        // In shared memory, a hole tells the same until the page is written. A failure may come halfway: RAM
        // records what presence has recorded, because a rewind clears the one by the other.
        ram.has_given(start..private_to);
        dropped?;
        punch(&base.file, private_to..end)
    });
    // Recorded for captures that copied the old content.
    ram.mark_written(gpa, len);
    done.map(|()| len).map_err(|errno| failed(errno.into()))
}

/// Drops the private pages of a range.
pub(super) fn drop_private(ram: &GuestRam, range: Range<u64>) -> rustix::io::Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let len = (range.end - range.start) as usize;
    let at = ram.host_address_of(range.start).cast();
    // SAFETY: the pages are guest memory, which is mapped as long as `ram` lives. Their content is the
    // guest's and may change at any time, and all readers of guest memory allow for that.
    let drop = || unsafe { rustix::mm::madvise(at, len, Advice::LinuxDontNeed) };
    match presence(ram.guest()) {
        Some(presence) => presence.drop_pages(range, drop),
        None => drop(),
    }
}

fn punch(base: &File, range: Range<u64>) -> rustix::io::Result<()> {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if range.is_empty() {
        Ok(())
    } else {
        let punch = || rustix::fs::fallocate(base, hole, range.start, range.end - range.start);
        rustix::io::retry_on_intr(punch)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use vm_memory::{Bytes, GuestAddress};

    use super::super::backing::Backing;
    use super::*;
    use crate::memory::dirty::populated::private_pages;

    const SIZE: u64 = 8 << 20;

    fn fresh() -> GuestRam {
        let ram = GuestRam::reserve(SIZE).unwrap();
        Backing::Fresh.map(&ram).unwrap();
        ram
    }

    fn clone_of(parent: &GuestRam) -> GuestRam {
        let ram = GuestRam::reserve(SIZE).unwrap();
        Backing::Private { base: parent.base().file, pages: None }.map(&ram).unwrap();
        ram
    }

    fn read(ram: &GuestRam, gpa: u64) -> u64 {
        ram.guest().read_obj(GuestAddress(gpa)).unwrap()
    }

    fn write(ram: &GuestRam, gpa: u64, value: u64) {
        ram.guest().write_obj(value, GuestAddress(gpa)).unwrap();
    }

    /// A page written while it was shared would look like one that was never returned.
    #[test]
    fn only_private_pages_are_recorded_as_returned() {
        let ram = fresh();
        give_back(&ram, 0x10_0000, PAGE).unwrap();
        assert!(ram.given().is_empty());
        let clone = clone_of(&ram);
        give_back(&clone, 0x10_0000, PAGE).unwrap();
        assert!(clone.given().has(0x10_0000) && clone.given().len() == 1);
    }

    #[test]
    fn returned_page_of_a_shared_memfd_is_a_hole() {
        let ram = fresh();
        for page in 0..4 {
            write(&ram, 0x10_0000 + page * PAGE, 7);
        }
        let blocks = ram.base().file.metadata().unwrap().blocks();
        give_back(&ram, 0x10_1000, 2 * PAGE).unwrap();
        assert!(
            ram.base().file.metadata().unwrap().blocks() < blocks || blocks > 4 * 8,
            "not in one huge page"
        );
        assert_eq!([0, 1, 2, 3].map(|page| read(&ram, 0x10_0000 + page * PAGE)), [7, 0, 0, 7]);
    }

    #[test]
    fn returned_page_of_a_clone_shows_the_base_and_leaves_others_alone() {
        let first = fresh();
        write(&first, 0x5000, 7);
        let [one, other] = [clone_of(&first), clone_of(&first)];
        for ram in [&one, &other] {
            write(ram, 0x5000, 8);
            write(ram, 0x6000, 9);
        }
        let private = |ram: &GuestRam| -> Vec<_> {
            private_pages(ram).unwrap().page_ranges().map(|run| (run.start, run.end)).collect()
        };
        assert_eq!(private(&one), [(0x5000, 0x7000)]);
        give_back(&one, 0x5000, 2 * PAGE).unwrap();
        assert_eq!((private(&one), private(&other)), (vec![], vec![(0x5000, 0x7000)]));
        assert_eq!((read(&one, 0x5000), read(&one, 0x6000)), (7, 0));
        assert_eq!((read(&other, 0x5000), read(&other, 0x6000)), (8, 9));
        assert_eq!(read(&first, 0x5000), 7);
    }

    #[test]
    fn only_whole_pages_of_ram_are_returned() {
        let ram = fresh();
        write(&ram, 0, 7);
        let problem = |gpa, len| crate::error::report(&give_back(&ram, gpa, len).unwrap_err());
        assert_eq!(
            problem(0, 100),
            "cannot return 0 KiB of guest memory at 0x0 to the host: the range is not made of whole pages"
        );
        assert!(problem(8, PAGE).ends_with("the range is not made of whole pages"));
        assert!(problem(0, 0).ends_with("the range is not made of whole pages"));
        for (gpa, len) in
            [(SIZE, PAGE), (SIZE - PAGE, 2 * PAGE), (0, SIZE + PAGE), (u64::MAX - PAGE + 1, PAGE)]
        {
            assert!(problem(gpa, len).ends_with("the range is not guest memory"), "{gpa:#x} {len:#x}");
        }
        assert!(problem(PAGE, u64::MAX - PAGE + 1).ends_with("the range is not guest memory"));
        assert_eq!(read(&ram, 0), 7);
        give_back(&ram, 0, SIZE).unwrap();
        assert_eq!((ram.base().file.metadata().unwrap().blocks(), read(&ram, 0)), (0, 0));
    }
}
