//! The agent's own memory in huge pages: fewer of its pages fault after a restore.
#![allow(unsafe_code)]

use std::fs;
use std::ops::Range;

use crate::kernel_file;

/// `MADV_COLLAPSE` of linux/mman.h, since Linux 6.1.
const COLLAPSE: libc::c_int = 25;
/// Bytes of a huge page.
const HUGE: usize = 2 << 20;
const PAGE: usize = 4096;

/// Asks the kernel to put private memory of this process into huge pages. Kernels that cannot leave it as it
/// is.
pub fn collapse() {
    if !may_have_huge_pages(&kernel_file::read("/proc/self/statm").unwrap_or_default()) {
        return;
    }
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for range in maps.lines().filter_map(private_memory) {
        // SAFETY: the call changes no content, and fails for a range that is no longer mapped.
        unsafe { libc::madvise(range.start as *mut libc::c_void, range.len(), COLLAPSE) };
    }
}

/// Whether this process uses enough memory without a file, by the text of statm (proc_pid_statm(5)). The list
/// of its mappings takes ten times as long to read.
fn may_have_huge_pages(statm: &str) -> bool {
    let mut pages = statm.split(' ').map(|pages| pages.parse::<usize>().ok());
    let resident = pages.nth(1).flatten();
    let of_files = pages.next().flatten();
    resident.zip(of_files).is_none_or(|(all, of_files)| all.saturating_sub(of_files) * PAGE >= HUGE)
}

/// The whole huge pages of a line of maps, if it is one of private memory without a file.
fn private_memory(line: &str) -> Option<Range<usize>> {
    let mut words = line.split_whitespace();
    let (range, rights, inode) = (words.next()?, words.next()?, words.nth(2)?);
    if rights != "rw-p" || inode != "0" || words.next().is_some_and(|name| name != "[heap]") {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let [start, end] = [start, end].map(|number| usize::from_str_radix(number, 16).ok());
    let (start, end) = (start?.next_multiple_of(HUGE), end? / HUGE * HUGE);
    (start < end).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_of_little_memory_is_left_as_it_is() {
        assert!(!may_have_huge_pages("9000 811 300 600 0 7000 0\n"));
        assert!(may_have_huge_pages("9000 812 300 600 0 7000 0\n"));
        assert!(may_have_huge_pages(""), "its maps tell");
    }

    #[test]
    fn whole_huge_pages_of_private_memory_are_found() {
        let found = |line| private_memory(line);
        assert_eq!(
            found("7f0000001000-7f0000600000 rw-p 00000000 00:00 0 "),
            Some(0x7f00_0020_0000..0x7f00_0060_0000)
        );
        assert_eq!(found("00200000-00400000 rw-p 00000000 00:00 0 [heap]"), Some(0x20_0000..0x40_0000));
        for other in [
            "7f0000001000-7f0000300000 rw-p 00000000 00:00 0 ",
            "00200000-00400000 r--p 00000000 00:00 0 ",
            "00200000-00400000 rw-p 00000000 00:00 0 [stack]",
            "00200000-00400000 rw-p 00000000 fe:00 7 /bin/a",
            "",
        ] {
            assert_eq!(found(other), None, "{other}");
        }
    }
}
