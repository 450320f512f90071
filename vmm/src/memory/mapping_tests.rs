//! Mappings of guest memory: children and core dumps do not get it, and the number of mappings is limited.

use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};

use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::memory::dirty::freeze::freeze;
use crate::memory::lazy::filler::Window;
use crate::memory::lazy::userfault::Userfault;
use crate::memory::page_set::PageSet;
use crate::progress::Progress;

/// The mappings of this process that `wanted` picks by address range and inode: their ranges and flags
/// (proc(5), `VmFlags`).
fn mappings(wanted: impl Fn(&Range<u64>, u64) -> bool) -> Vec<(Range<u64>, String)> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut found, mut current) = (Vec::new(), None);
    for line in smaps.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if let Some((start, end)) = fields[0].split_once('-').filter(|_| fields.len() >= 5) {
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            let range = number(start)..number(end);
            current = wanted(&range, fields[4].parse().unwrap()).then_some(range);
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            found.extend(current.take().map(|range| (range, flags.to_owned() + " ")));
        }
    }
    found
}

fn mappings_of(ram: &GuestRam) -> Vec<(Range<u64>, String)> {
    let start = ram.host_address_of(0) as u64;
    let end = start + ram.len();
    mappings(|range, _| range.start >= start && range.end <= end)
}

fn assert_kept_from_children_and_dumps(mappings: &[(Range<u64>, String)], what: &str) {
    assert!(!mappings.is_empty(), "{what} is mapped");
    for (range, flags) in mappings {
        assert!(flags.contains(" dc "), "{what}: a child would get {range:x?}:{flags}");
        assert!(flags.contains(" dd "), "{what}: a core dump would have {range:x?}:{flags}");
    }
}

/// `count` ranges of the least mapped length, with gaps as long, over a base of zeros.
fn striped(count: u64) -> GuestRam {
    let len = (2 * count * WORTH_MAPPING).next_multiple_of(2 << 20);
    let (file, mut pages) = (fresh(len).unwrap(), PageSet::none(len));
    for number in 0..count {
        let at = 2 * number * WORTH_MAPPING;
        pages.add(at..at + WORTH_MAPPING);
        file.write_all_at(&(number + 1).to_le_bytes(), at + 8).unwrap();
    }
    let ram = GuestRam::reserve(len).unwrap();
    let pages = OverlayPages { pages: Arc::new(pages), file: Arc::new(file) };
    Backing::Private { base: Arc::new(fresh(len).unwrap()), pages: Some(pages) }.map(&ram).unwrap();
    ram
}

#[test]
fn children_and_core_dumps_get_no_guest_memory() {
    let ram = GuestRam::reserve(8 << 20).unwrap();
    Backing::Fresh.map(&ram).unwrap();
    ram.guest().write_obj(7_u64, GuestAddress(0x5000)).unwrap();
    assert_kept_from_children_and_dumps(&mappings_of(&ram), "fresh memory");
    freeze(&ram, &Progress::default()).unwrap();
    assert_kept_from_children_and_dumps(&mappings_of(&ram), "frozen memory");
    assert_kept_from_children_and_dumps(&mappings_of(&striped(3)), "memory with pages over it");
    let memfd = fresh(4 << 20).unwrap();
    if let Err(error) = Userfault::new() {
        return crate::testing::skip(&format!("no userfaultfd: {error}"));
    }
    let _window = Window::over(&memfd, 4 << 20).unwrap();
    let inode = memfd.metadata().unwrap().ino();
    let found = mappings(|range, other| other == inode && range.end - range.start == 4 << 20);
    assert_kept_from_children_and_dumps(&found, "a base that is filled");
}

/// Ranges beyond the limit are copied. Otherwise a process that restores such a snapshot would run out of
/// mappings.
#[test]
fn page_ranges_beyond_the_limit_are_copied_and_not_mapped() {
    let count = u64::from(MOST_MAPPINGS / 2) + 200;
    let ram = striped(count);
    let mappings = mappings_of(&ram).len();
    let most = MOST_MAPPINGS as usize;
    assert!((most / 2..=most + 2).contains(&mappings), "{mappings} mappings");
    for number in 0..count {
        let at = 2 * number * WORTH_MAPPING;
        let word = |at| ram.guest().read_obj::<u64>(GuestAddress(at)).unwrap();
        assert_eq!((word(at + 8), word(at + WORTH_MAPPING + 8)), (number + 1, 0), "run {number}");
    }
}
