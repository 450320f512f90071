//! Finds the pages of guest memory that may hold data: those with data in the base, and the guest's private
//! pages. All others are zero, and reading them would only allocate memory.

use std::io;
use std::os::unix::fs::FileExt;

use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::memory::lazy::faults::FilledPages;
use crate::memory::page_set::PageSet;
use crate::memory::ram::GuestRam;
use crate::sandbox::process;

const PAGEMAP: &str = "/proc/self/pagemap";
/// Bits of an entry of `/proc/pid/pagemap` (Documentation/admin-guide/mm/pagemap.rst).
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const FILE_OR_SHARED: u64 = 1 << 61;
/// Entries read at once, for 8 MiB of memory. The kernel fills fewer at a time. The first touch of each page
/// of a larger buffer would take longer than the further reads.
const ENTRIES: usize = 2 << 10;

/// The pages that differ from the base's: private and written, or laid over the base. While the guest runs,
/// the result has all pages that differed at the call, and perhaps some that differ since. If a service fills
/// this VM's own pages, the result has all pages that are present.
///
/// # Errors
/// The pagemap cannot be read.
pub fn private_pages(ram: &GuestRam) -> Result<PageSet> {
    let pages = held_pages(ram)?;
    if ram.base().has_anonymous_holes { without_zeros(ram, &pages) } else { Ok(pages) }
}

/// The pages that this VM alone holds: as [`private_pages`], and all of a huge page of which one was written.
///
/// # Errors
/// The pagemap cannot be read.
pub fn held_pages(ram: &GuestRam) -> Result<PageSet> {
    let pages = all_private_pages(ram)?;
    match ram.faults().map(|faults| faults.handler().fills()) {
        Some(FilledPages::Base) => without_zeros(ram, &pages),
        Some(FilledPages::Vm) | None => Ok(pages),
    }
}

/// As [`private_pages`], over a base that is complete: its holes are pages of zeros. In huge pages, all
/// memory that is not zero.
///
/// # Errors
/// The pagemap cannot be read, or a page.
pub fn pages_over_complete(ram: &GuestRam) -> Result<PageSet> {
    let pages = if ram.is_huge() { mapped_pages(ram)? } else { all_private_pages(ram)? };
    let may_be_zero = ram.is_huge() || ram.faults().is_some() || ram.base().has_anonymous_holes;
    if may_be_zero { without_zeros(ram, &pages) } else { Ok(pages) }
}

fn all_private_pages(ram: &GuestRam) -> Result<PageSet> {
    with_private(ram, laid_over(ram))
}

fn laid_over(ram: &GuestRam) -> PageSet {
    ram.base().over.map_or_else(|| PageSet::none(ram.len()), |over| (*over).clone())
}

/// Leaves out pages of zeros. A base that page faults fill maps its zero pages as private ones, and anonymous
/// holes have them too, which the pagemap shows like any other. Pages that the guest zeroed where the base
/// has zeros are equal to the base's too.
fn without_zeros(ram: &GuestRam, pages: &PageSet) -> Result<PageSet> {
    let failed = |source| Error::host("look at pages of guest memory", source);
    let laid_over = laid_over(ram);
    let mut holes = PageSet::none(ram.len());
    let mut at = 0;
    for data in ram.data_of_base().map_err(failed)? {
        holes.add(at..data.start);
        at = data.end;
    }
    holes.add(at..ram.len());
    let mut others = PageSet::none(ram.len());
    let mut content = [0; PAGE as usize];
    for page in pages.page_ranges().flat_map(|run| run.step_by(PAGE as usize)) {
        let maybe = holes.has(page) && !laid_over.has(page);
        let is_zero = |content: &[u8]| content.iter().all(|byte| *byte == 0);
        if !maybe || !ram.read_page(page, &mut content).map(is_zero).map_err(failed)? {
            others.add(page..page + PAGE);
        }
    }
    Ok(others)
}

/// The pages that are in the page tables or swapped out: touched pages and, in memory of a file, some
/// neighbours.
///
/// # Errors
/// The pagemap cannot be read.
pub fn mapped_pages(ram: &GuestRam) -> Result<PageSet> {
    mapped_pages_at(ram.host_address_of(0) as u64, ram.len())
        .map_err(|source| Error::file("read", PAGEMAP, source))
}

/// The pages that the guest has written since its restore, and the others that it may have read. Its memory
/// is mapped from a file, but for holes. Pages that the restore copied over the base count
/// as written.
///
/// # Errors
/// The pagemap cannot be read.
pub fn touched_pages(ram: &GuestRam) -> Result<[PageSet; 2]> {
    let held = with_private(ram, PageSet::none(ram.len()))?;
    let written = if ram.base().has_anonymous_holes { without_zeros(ram, &held)? } else { held.clone() };
    let mapped = mapped_pages(ram)?;
    let mut read = PageSet::none(ram.len());
    mapped.page_ranges().flat_map(|run| held.gaps(run).collect::<Vec<_>>()).for_each(|gap| read.add(gap));
    Ok([written, read])
}

/// As [`mapped_pages`], of `len` bytes of memory at an address of this process.
///
/// # Errors
/// The pagemap cannot be read.
pub(crate) fn mapped_pages_at(start: u64, len: u64) -> io::Result<PageSet> {
    let mut pages = PageSet::none(len);
    add_where(start, len, |entry| entry & (PRESENT | SWAPPED) != 0, &mut pages)?;
    Ok(pages)
}

/// These pages, and the private ones of a mapping: present and not the file's, or swapped out.
fn with_private(ram: &GuestRam, mut pages: PageSet) -> Result<PageSet> {
    let is_private = |entry| entry & SWAPPED != 0 || entry & (PRESENT | FILE_OR_SHARED) == PRESENT;
    add_where(ram.host_address_of(0) as u64, ram.base().private_to, is_private, &mut pages)
        .map_err(|source| Error::file("read", PAGEMAP, source))?;
    Ok(pages)
}

/// Adds the pages of `bytes` of memory at `start` whose pagemap entry satisfies `is_one`.
fn add_where(start: u64, bytes: u64, is_one: impl Fn(u64) -> bool, to: &mut PageSet) -> io::Result<()> {
    let pagemap = process::pagemap()?;
    let mut buffer = vec![0; ENTRIES * 8];
    let first = start / PAGE;
    let pages = bytes / PAGE;
    let mut page = 0;
    while page < pages {
        let count = (pages - page).min(ENTRIES as u64);
        let bytes = &mut buffer[..count as usize * 8];
        pagemap.read_exact_at(bytes, (first + page) * 8)?;
        for (index, entry) in (page..).zip(bytes.chunks_exact(8)) {
            let entry = u64::from_le_bytes(entry.try_into().expect("eight bytes"));
            if is_one(entry) {
                to.add(index * PAGE..(index + 1) * PAGE);
            }
        }
        page += count;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use vm_memory::{Bytes, GuestAddress};

    use std::sync::Arc;

    use super::*;
    use crate::memory::backing::Backing;
    use crate::memory::base::OverlayPages;
    use crate::memory::files::data::data_ranges;
    use crate::memory::files::memfd::fresh;

    #[test]
    fn scan_finds_pages_of_the_base_and_of_the_clone() {
        let ram = GuestRam::reserve(8 << 20).unwrap();
        Backing::Fresh.map(&ram).unwrap();
        let data = |ram: &GuestRam| data_ranges(&ram.base().file, ram.len()).unwrap();
        assert!(data(&ram).is_empty() && private_pages(&ram).unwrap().is_empty());
        ram.guest().write_obj(1u8, GuestAddress(0x10_0000)).unwrap();
        ram.guest().write_obj(1u8, GuestAddress(0x10_1fff)).unwrap();
        // On a host that makes huge pages of shared memory, more than was written.
        let found = data(&ram);
        assert!(found.len() == 1 && found[0].start <= 0x10_0000 && found[0].end >= 0x10_2000, "{found:x?}");
        assert!(found[0].end <= 0x20_0000, "{found:x?}");
        assert!(private_pages(&ram).unwrap().is_empty(), "nothing is private yet");

        let clone = GuestRam::reserve(8 << 20).unwrap();
        Backing::Private { base: ram.base().file, pages: None }.map(&clone).unwrap();
        clone.guest().read_obj::<u8>(GuestAddress(0x30_0000)).unwrap();
        for at in [0x10_1000, 0x10_2000, 0x70_0000] {
            clone.guest().write_obj(1u8, GuestAddress(at)).unwrap();
        }
        let private: Vec<_> = private_pages(&clone).unwrap().page_ranges().collect();
        assert_eq!(private, vec![0x10_1000..0x10_3000, 0x70_0000..0x70_1000]);
        let [written, read] = touched_pages(&clone).unwrap();
        assert_eq!(written.page_ranges().collect::<Vec<_>>(), private);
        assert!(read.has(0x30_0000) && !read.has(0x10_1000) && !read.has(0x70_0000));
    }

    #[test]
    fn page_laid_over_the_base_is_touched_only_once_the_guest_touches_it() {
        let (ram, run) = (GuestRam::reserve(8 << 20).unwrap(), 0x20_0000..0x40_0000);
        let mut pages = PageSet::none(ram.len());
        pages.add(run.clone());
        let over = OverlayPages { pages: Arc::new(pages), file: Arc::new(fresh(ram.len()).unwrap()) };
        over.file.write_all_at(&[7], run.start).unwrap();
        let base = Arc::new(fresh(ram.len()).unwrap());
        Backing::Private { base, pages: Some(over) }.map(&ram).unwrap();
        let [written, read] = touched_pages(&ram).unwrap();
        assert!(written.is_empty() && read.is_empty());
        assert_eq!(ram.guest().read_obj::<u8>(GuestAddress(run.start)).unwrap(), 7);
        ram.guest().write_obj(1u8, GuestAddress(0x30_0000)).unwrap();
        let [written, read] = touched_pages(&ram).unwrap();
        assert_eq!(written.page_ranges().collect::<Vec<_>>(), vec![0x30_0000..0x30_1000; 1]);
        assert!(read.has(run.start) && !read.has(0x30_0000));
    }
}
