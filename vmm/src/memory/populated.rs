//! Which pages of a guest's RAM may hold something: those with data in the base file, and those the guest has made its
//! own. All others are zero and need not be looked at, let alone be brought into memory.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::PAGE;
use super::backing::Base;
use super::ram::GuestRam;
use crate::error::{Error, Result};

/// Bits of an entry of `/proc/pid/pagemap` (Documentation/admin-guide/mm/pagemap.rst).
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const FILE_OR_SHARED: u64 = 1 << 61;
/// Entries read at once: 256 KiB of pagemap for 128 MiB of memory.
const ENTRIES: usize = 32 << 10;

/// Ranges of offsets into RAM, in order and apart, outside of which every page is zero. The guest must not run.
///
/// # Errors
/// The base or the pagemap cannot be read.
pub fn populated_ranges(ram: &GuestRam, base: &Base) -> Result<Vec<Range<u64>>> {
    let mut ranges = data_ranges(&base.file, ram.len())
        .map_err(|source| Error::host("look for data in the base of guest memory", source))?;
    if base.private {
        let private =
            private_ranges(ram).map_err(|source| Error::file("read", "/proc/self/pagemap", source))?;
        ranges.extend(private);
        ranges.sort_unstable_by_key(|range| range.start);
    }
    Ok(merged(ranges))
}

/// Where a file has data and not holes, in whole pages, in its first `len` bytes.
///
/// # Errors
/// The file system cannot tell.
pub fn data_ranges(file: &File, len: u64) -> io::Result<Vec<Range<u64>>> {
    let mut ranges = Vec::new();
    let mut end = 0;
    while end < len {
        let start = match rustix::fs::seek(file, SeekFrom::Data(end)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        end = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(len);
        ranges.push(start / PAGE * PAGE..end.next_multiple_of(PAGE).min(len));
    }
    Ok(ranges)
}

/// Pages of a private mapping that are the process's own: present and not the file's, or swapped out.
fn private_ranges(ram: &GuestRam) -> io::Result<Vec<Range<u64>>> {
    let pagemap = File::open("/proc/self/pagemap")?;
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut buffer = vec![0; ENTRIES * 8];
    for region in ram.regions() {
        let first = ram.host_address(region) as u64 / PAGE;
        let pages = region.len / PAGE;
        let mut page = 0;
        while page < pages {
            let count = (pages - page).min(ENTRIES as u64);
            let bytes = &mut buffer[..count as usize * 8];
            pagemap.read_exact_at(bytes, (first + page) * 8)?;
            for (index, entry) in (page..).zip(bytes.chunks_exact(8)) {
                let entry = u64::from_le_bytes(entry.try_into().expect("eight bytes"));
                if entry & SWAPPED != 0 || entry & (PRESENT | FILE_OR_SHARED) == PRESENT {
                    let start = region.offset + index * PAGE;
                    match ranges.last_mut() {
                        Some(last) if last.end == start => last.end += PAGE,
                        _ => ranges.push(start..start + PAGE),
                    }
                }
            }
            page += count;
        }
    }
    Ok(ranges)
}

fn merged(ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vm_memory::{Bytes, GuestAddress};

    use super::super::backing::Backing;
    use super::*;

    #[test]
    fn finds_what_the_base_holds_and_what_a_clone_wrote() {
        let ram = GuestRam::reserve(8 << 20).unwrap();
        let base = Backing::Fresh.map(&ram).unwrap();
        assert!(populated_ranges(&ram, &base).unwrap().is_empty());
        ram.guest().write_obj(1u8, GuestAddress(0x10_0000)).unwrap();
        ram.guest().write_obj(1u8, GuestAddress(0x10_1fff)).unwrap();
        assert_eq!(populated_ranges(&ram, &base).unwrap(), vec![0x10_0000..0x10_2000]);

        let clone = GuestRam::reserve(8 << 20).unwrap();
        let base = Backing::Private { base: Arc::clone(&base.file) }.map(&clone).unwrap();
        clone.guest().read_obj::<u8>(GuestAddress(0x30_0000)).unwrap();
        clone.guest().write_obj(1u8, GuestAddress(0x10_1000)).unwrap();
        clone.guest().write_obj(1u8, GuestAddress(0x10_2000)).unwrap();
        clone.guest().write_obj(1u8, GuestAddress(0x70_0000)).unwrap();
        // Reading a hole may put an empty page into the base, so the page at 0x30_0000 may or may not be listed.
        let mut ranges = populated_ranges(&clone, &base).unwrap();
        ranges.retain(|range| range.start != 0x30_0000);
        assert_eq!(ranges, vec![0x10_0000..0x10_3000, 0x70_0000..0x70_1000]);
    }

    #[test]
    fn overlapping_ranges_become_one() {
        assert_eq!(merged(vec![0..4, 2..3, 4..6, 8..9]), vec![0..6, 8..9]);
    }
}
