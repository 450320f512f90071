//! Lists of ranges of memory between a VM and its pager, in a file beside a message: a list may be longer
//! than a message.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::MemfdFlags;

use crate::memory::page_ranges;

/// Bytes decoded at once.
const STEP: usize = 64 << 10;

/// Writes a list to a memfd.
///
/// # Errors
/// The host has no memory for it.
pub fn list(ranges: &[Range<u64>]) -> io::Result<File> {
    let file = File::from(rustix::fs::memfd_create("volt-pages", MemfdFlags::CLOEXEC)?);
    let bytes: Vec<u8> = page_ranges::encode(ranges).collect();
    file.write_all_at(&bytes, 0)?;
    Ok(file)
}

/// Reads a list of ranges within `memory` bytes. The other process owns the file and may change it at any
/// time, so only the copy is checked.
///
/// # Errors
/// The reason why the list is invalid.
pub fn listed(file: &File, memory: u64) -> Result<Vec<Range<u64>>, String> {
    let failed = |error: io::Error| format!("the list of pages cannot be read: {error}");
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err("the list of pages is not a regular file".to_owned());
    }
    if metadata.len() > page_ranges::longest(memory) {
        return Err(format!("the list of pages is too long, {} bytes", metadata.len()));
    }
    let impossible = || {
        "the list of pages has an empty range, a page beyond the end of memory, or a page twice".to_owned()
    };
    let (len, mut step, mut ranges) = (metadata.len(), vec![0; STEP], Vec::new());
    // Stops at the first invalid range: a hole takes no memory, however long.
    for at in (0..len).step_by(STEP) {
        let step = &mut step[..(len - at).min(STEP as u64) as usize];
        file.read_exact_at(step, at).map_err(failed)?;
        page_ranges::add(step, memory, &mut ranges).ok_or_else(impossible)?;
    }
    page_ranges::are_apart(&ranges).then_some(ranges).ok_or_else(impossible)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::PAGE;

    const MEMORY: u64 = 16 << 40;

    fn refused(file: &File) -> String {
        listed(file, MEMORY).unwrap_err()
    }

    #[test]
    fn list_comes_back_in_its_order() {
        let ranges: Vec<_> = (0..20_000_u64).rev().map(|at| at * 3 * PAGE..(at * 3 + 1) * PAGE).collect();
        assert_eq!(listed(&list(&ranges).unwrap(), MEMORY).unwrap(), ranges);
        assert_eq!(listed(&list(&[]).unwrap(), MEMORY).unwrap(), []);
    }

    /// A list of 32 GiB would take the memory of the VM and its pager. It must be refused without allocating
    /// it.
    #[test]
    fn list_of_holes_is_refused_at_its_first_range() {
        let file = list(&[]).unwrap();
        file.set_len(page_ranges::longest(MEMORY)).unwrap();
        assert!(refused(&file).contains("a page beyond the end of memory"), "{}", refused(&file));
        file.set_len(page_ranges::longest(MEMORY) + 8).unwrap();
        assert!(refused(&file).contains("too long"), "{}", refused(&file));
    }

    #[test]
    fn forged_ranges_are_refused() {
        for (ranges, what) in [
            ([0..PAGE, 0..PAGE], "one page twice"),
            ([0..PAGE, 2 * PAGE..2 * PAGE], "none"),
            ([0..PAGE, MEMORY - PAGE..MEMORY + PAGE], "beyond the end"),
        ] {
            assert!(
                refused(&list(&ranges).unwrap())
                    .contains("the list of pages has an empty range, a page beyond"),
                "{what}"
            );
        }
        let cut = list(&[0..PAGE, PAGE * 2..PAGE * 3]).unwrap();
        cut.set_len(12).unwrap();
        assert!(refused(&cut).contains("the list of pages has an empty range, a page beyond"));
        let null = File::open("/dev/null").unwrap();
        assert!(refused(&null).contains("not a regular file"));
    }
}
