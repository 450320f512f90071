//! What guest memory is, in one number: the name by which a diff knows its base.
//!
//! It is the sum, modulo 2^64, of the CRC-64/ECMA-182 of each page that is not zero, its bytes and then its offset (64 bits,
//! little-endian). So it depends on nothing but the content, however that is stored, and parts of it can be computed apart. It tells
//! memories of different origin apart and notices damage; it does not stand against anyone who wants to deceive.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::holes::is_zero;
use super::manifest::CRC;
use super::pack::Source;
use crate::error::Result;
use crate::memory::PAGE;
use crate::memory::populated::data_ranges;

/// Bytes read at once.
const STEP: u64 = 1 << 20;

/// The part of the digest that `bytes` at `offset` are, whole pages.
#[must_use]
pub fn of_pages(offset: u64, bytes: &[u8]) -> u64 {
    let pages = (offset..).step_by(PAGE as usize).zip(bytes.chunks(PAGE as usize));
    pages.filter(|(_, page)| !is_zero(page)).fold(0, |sum, (at, page)| {
        let mut digest = CRC.digest();
        digest.update(page);
        digest.update(&at.to_le_bytes());
        sum.wrapping_add(digest.finalize())
    })
}

/// The digest of a file of `len` bytes of guest memory.
///
/// # Errors
/// It cannot be read; `failed` says of what file.
pub fn of_file(file: &File, len: u64, failed: &dyn Fn(io::Error) -> crate::error::Error) -> Result<u64> {
    let mut buffer = vec![0; STEP as usize];
    let mut sum = 0_u64;
    for range in data_ranges(file, len).map_err(failed)? {
        for start in range.clone().step_by(STEP as usize) {
            let step = &mut buffer[..(range.end - start).min(STEP) as usize];
            file.read_exact_at(step, start).map_err(failed)?;
            sum = sum.wrapping_add(of_pages(start, step));
        }
    }
    Ok(sum)
}

/// The digest of a memory that is about to be written.
///
/// # Errors
/// It cannot be read.
pub(super) fn of_source(source: &dyn Source) -> Result<u64> {
    let mut buffer = vec![0; STEP as usize];
    let mut sum = 0_u64;
    for range in source.populated() {
        for start in range.clone().step_by(STEP as usize) {
            let step = &mut buffer[..(range.end - start).min(STEP) as usize];
            source.read_at(start, step)?;
            sum = sum.wrapping_add(of_pages(start, step));
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_depends_on_content_and_place_alone() {
        let page = |byte| [byte; PAGE as usize];
        let both = [page(1), page(2)].concat();
        assert_eq!(of_pages(0, &both), of_pages(0, &page(1)).wrapping_add(of_pages(PAGE, &page(2))));
        assert_ne!(of_pages(0, &both), of_pages(PAGE, &both));
        assert_ne!(of_pages(0, &both), of_pages(0, &[page(2), page(1)].concat()));
        assert_eq!(of_pages(0, &[page(0), page(2)].concat()), of_pages(PAGE, &page(2)), "zeros are nothing");
    }
}
