//! Finds the data and the holes of a file.

use std::fs::File;
use std::io;
use std::ops::Range;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::memory::PAGE;

/// The ranges of data among the first `len` bytes of a file, in whole pages.
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
