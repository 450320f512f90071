//! Pages of zeros, which a file of guest memory does not have.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::memory::PAGE;

/// Whether a page, or a part of one, is all zeros.
#[must_use]
pub fn is_zero(page: &[u8]) -> bool {
    static ZERO: [u8; PAGE as usize] = [0; PAGE as usize];
    page == &ZERO[..page.len()]
}

/// Writes the runs of those pages that are `wanted`. `bytes` is a whole number of pages.
pub(super) fn write_pages(
    file: &File,
    offset: u64,
    bytes: &[u8],
    wanted: impl Fn(u64, &[u8]) -> bool,
) -> io::Result<()> {
    let mut run = 0..0;
    for page in bytes.chunks(PAGE as usize) {
        let end = run.end + page.len();
        if wanted(offset + run.end as u64, page) {
            run.end = end;
        } else {
            write_run(file, offset, bytes, run)?;
            run = end..end;
        }
    }
    write_run(file, offset, bytes, run)
}

fn write_run(file: &File, offset: u64, bytes: &[u8], run: Range<usize>) -> io::Result<()> {
    let start = offset + run.start as u64;
    if run.is_empty() { Ok(()) } else { file.write_all_at(&bytes[run], start) }
}
