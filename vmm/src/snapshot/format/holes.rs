//! Pages of zeros: a file of guest memory has holes in their place.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::memory::PAGE;

/// Bytes examined before the first decision. The compiler vectorizes this many.
const BLOCK: usize = 256;

/// Whether all bytes are zero. `memcmp` is no alternative: musl's compares one byte at a time.
#[must_use]
pub fn is_zero(bytes: &[u8]) -> bool {
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    let none = |bytes: &[u8]| bytes.iter().fold(0, |any, byte| any | byte) == 0;
    blocks.iter().all(|block| none(block)) && none(rest)
}

/// Writes the `wanted` pages of `bytes`, which is a whole number of pages.
pub(crate) fn write_pages(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_with_one_nonzero_byte_is_not_zero() {
        for len in [0, 1, 255, 256, 257, 511, 4096, 4097] {
            let mut bytes = vec![0; len];
            assert!(is_zero(&bytes), "{len} bytes");
            for at in 0..len {
                bytes[at] = 0x80;
                assert!(!is_zero(&bytes), "byte {at} of {len}");
                bytes[at] = 0;
            }
        }
    }
}
