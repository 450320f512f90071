//! Huge pages where the base has holes.
//!
//! ```text
//!   base     [ data | hole ............................... | data ]
//!   mapped   [ file | file | anonymous, in 2 MiB ... | file| file ]
//! ```
//!
//! The kernel and KVM map pages of a file one by one. A restored guest that allocates memory which it has not
//! used before, a hole of its snapshot, would take a page fault for each page. Both have zeros, so that
//! anonymous memory may stand for holes; the host's policy decides whether its pages are huge
//! (/sys/kernel/mm/transparent_hugepage/enabled: `madvise` suffices, which is the usual one).

use std::cmp::Reverse;

use crate::error::Result;
use crate::memory::backing::map_anonymous;
use crate::memory::base::PageSize;
use crate::memory::page_set::PageSet;
use crate::memory::ram::GuestRam;

/// The most mappings of holes. Each takes the kernel some microseconds, and splits that of the file in two.
const MOST: usize = 256;

/// Maps anonymous memory over the largest holes of a private base, where a huge page fits. Nothing has
/// touched them yet. Pages laid over the base stay. Does nothing if the file system does not tell where holes
/// are.
///
/// # Errors
/// The host refuses memory.
pub fn prefer_huge_pages(ram: &GuestRam) -> Result<()> {
    let Ok(data) = ram.data_of_base() else { return Ok(()) };
    let mut taken = PageSet::none(ram.len());
    data.into_iter().for_each(|data| taken.add(data));
    ram.base().over.iter().flat_map(|over| over.page_ranges()).for_each(|run| taken.add(run));
    let huge = PageSize::Huge.bytes();
    let regions = ram.regions().iter().map(|region| region.offset..region.offset + region.len);
    let gaps = regions.flat_map(|region| taken.gaps(region));
    let holes = gaps.map(|gap| gap.start.next_multiple_of(huge)..gap.end / huge * huge);
    let mut holes: Vec<_> = holes.filter(|hole| hole.start < hole.end).collect();
    holes.sort_unstable_by_key(|hole| Reverse(hole.end - hole.start));
    holes.into_iter().take(MOST).try_for_each(|hole| map_anonymous(ram, hole))?;
    ram.change_base(|base| base.iter_mut().for_each(|base| base.has_anonymous_holes = true));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    use vm_memory::{Bytes, GuestAddress};

    use super::*;
    use crate::memory::PAGE;
    use crate::memory::backing::Backing;
    use crate::memory::base::OverlayPages;
    use crate::memory::dirty::populated::{pages_over_complete, private_pages};
    use crate::memory::dirty::reset::reset;
    use crate::memory::files::memfd::fresh;

    const HUGE: u64 = 2 << 20;
    const SIZE: u64 = 48 * HUGE;

    /// Memory of 7 at the end of each range, and holes elsewhere.
    fn file_with(ends: &[u64]) -> Arc<File> {
        let file = fresh(SIZE).unwrap();
        ends.iter().for_each(|end| file.write_all_at(&7_u64.to_le_bytes(), end - 8).unwrap());
        Arc::new(file)
    }

    fn restored(base: &Arc<File>, pages: Option<OverlayPages>) -> GuestRam {
        let ram = GuestRam::reserve(SIZE).unwrap();
        Backing::Private { base: Arc::clone(base), pages }.map(&ram).unwrap();
        prefer_huge_pages(&ram).unwrap();
        ram
    }

    fn word(ram: &GuestRam, at: u64) -> u64 {
        ram.guest().read_obj(GuestAddress(at)).unwrap()
    }

    #[test]
    fn memory_has_the_content_of_base_and_pages_over_it() {
        let (end, over) = (3 * HUGE, 9 * HUGE + 5 * PAGE);
        let base = file_with(&[end]);
        let mut pages = PageSet::none(SIZE);
        pages.add(over - PAGE..over);
        let pages = OverlayPages { pages: Arc::new(pages), file: file_with(&[over]) };
        let ram = restored(&base, Some(pages));
        for at in (0..SIZE).step_by(PAGE as usize) {
            let expected = if [end, over].contains(&(at + PAGE)) { 7 } else { 0 };
            assert_eq!(word(&ram, at + PAGE - 8), expected, "{at:#x}");
        }
    }

    #[test]
    fn written_pages_are_told_and_reset_and_others_are_not_though_they_are_huge() {
        let base = file_with(&[3 * HUGE]);
        let (ram, other) = (restored(&base, None), restored(&base, None));
        let written = [PAGE, 3 * HUGE - PAGE, 7 * HUGE + 3 * PAGE, SIZE - PAGE];
        written.iter().for_each(|at| ram.guest().write_obj(9_u64, GuestAddress(*at)).unwrap());
        // A page of zeros is mapped for a read.
        assert_eq!(word(&ram, 12 * HUGE), 0);
        for found in [private_pages(&ram).unwrap(), pages_over_complete(&ram).unwrap()] {
            let found: Vec<_> = found.page_ranges().collect();
            assert_eq!(found, written.map(|at| at..at + PAGE));
        }
        assert!(written.iter().all(|at| word(&other, *at) == 0));
        let mut pages = PageSet::none(SIZE);
        written.iter().for_each(|at| pages.add(*at..at + PAGE));
        let is_reset = || written.iter().all(|at| word(&ram, *at) == 0) && word(&ram, 3 * HUGE - 8) == 7;
        reset(&ram, &pages, None).unwrap();
        assert!(is_reset());
        // As many pages as all are dropped, and not copied.
        written.iter().for_each(|at| ram.guest().write_obj(9_u64, GuestAddress(*at)).unwrap());
        pages.add(0..SIZE);
        reset(&ram, &pages, None).unwrap();
        assert!(is_reset());
    }

    #[test]
    fn hole_may_have_huge_pages_and_data_is_of_the_file() {
        let ram = restored(&file_with(&[3 * HUGE]), None);
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mapping = |offset: u64| {
            let beginning = format!("{:x}-", ram.host_address_of(offset) as u64);
            let found = smaps.split_inclusive("VmFlags:").collect::<Vec<_>>();
            let at = found.iter().position(|text| text.lines().any(|line| line.starts_with(&beginning)));
            let at = at.unwrap_or_else(|| panic!("no mapping begins with {beginning}: {smaps}"));
            let head = found[at].lines().find(|line| line.starts_with(&beginning)).unwrap();
            let flags = found[at + 1].lines().next().unwrap();
            (head.contains("memfd:"), flags.split(' ').any(|flag| flag == "hg"))
        };
        assert_eq!(mapping(0), (false, true));
        assert!(mapping(2 * HUGE).0, "it has data");
        assert_eq!(mapping(3 * HUGE), (false, true));
    }
}
