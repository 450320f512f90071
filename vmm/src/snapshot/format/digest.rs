//! The digest of guest memory: one number by which a diff identifies its base.
//!
//! It is the sum, modulo 2^64, of the CRC-64/ECMA-182 of each page that is not zero: the page's bytes, then
//! its offset (64 bits, little-endian). It depends only on the content, not on how that is stored, and parts
//! of it can be computed apart. It distinguishes memories of different origin and detects damage. It does not
//! resist an attacker.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::crc::CRC;
use super::holes::is_zero;
use super::source::{MemorySource, threads_for};
use crate::error::Result;
use crate::memory::PAGE;
use crate::progress::Progress;
use crate::sync::lock;
use crate::threads;

/// Bytes read at once.
const STEP: u64 = 1 << 20;
/// A thread is worth starting for this many steps.
const STEPS_OF_A_THREAD: usize = 16;

/// Computes the share of the whole pages `bytes` at `offset` in the digest.
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

/// Parses a digest of 16 hex digits. Returns 0, the digest of memory that was never written, for any other
/// text.
#[must_use]
pub fn parse(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap_or(0)
}

/// Formats a digest as 16 hex digits.
#[must_use]
pub fn format(digest: u64) -> String {
    format!("{digest:016x}")
}

/// Computes the digest of a memory on all cores.
///
/// # Errors
/// The memory cannot be read, or [`crate::Error::Cancelled`].
pub(crate) fn of_source(source: &dyn MemorySource, progress: &Progress) -> Result<u64> {
    let steps: Vec<Range<u64>> = source.populated().iter().flat_map(steps_of).collect();
    let (next, sum) = (AtomicUsize::new(0), AtomicU64::new(0));
    let failed = Mutex::new(None);
    let work = || {
        let mut buffer = vec![0; STEP as usize];
        while let Some(step) = steps.get(next.fetch_add(1, Ordering::Relaxed)) {
            let len = step.end - step.start;
            let bytes = &mut buffer[..len as usize];
            let read = progress.check().and_then(|()| source.read_at(step.start, bytes));
            if let Err(error) = read.and_then(|()| progress.add(len)) {
                *lock(&failed) = Some(error);
                // The other threads find no step left.
                next.store(steps.len(), Ordering::Relaxed);
                return;
            }
            sum.fetch_add(of_pages(step.start, bytes), Ordering::Relaxed);
        }
    };
    let threads = threads_for((steps.len() / STEPS_OF_A_THREAD) as u32, None);
    threads::share_work("digest", (0..threads).map(|_| &work));
    let failed = lock(&failed).take();
    failed.map_or_else(|| Ok(sum.load(Ordering::Relaxed)), Err)
}

fn steps_of(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let end = range.end;
    (range.start..end).step_by(STEP as usize).map(move |start| start..end.min(start + STEP))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::super::raw::RawSource;
    use super::*;
    use crate::error::Error;

    #[test]
    fn digest_depends_on_content_and_position_alone() {
        let page = |byte| [byte; PAGE as usize];
        let both = [page(1), page(2)].concat();
        assert_eq!(of_pages(0, &both), of_pages(0, &page(1)).wrapping_add(of_pages(PAGE, &page(2))));
        assert_ne!(of_pages(0, &both), of_pages(PAGE, &both));
        assert_ne!(of_pages(0, &both), of_pages(0, &[page(2), page(1)].concat()));
        assert_eq!(of_pages(0, &[page(0), page(2)].concat()), of_pages(PAGE, &page(2)), "zeros are nothing");
    }

    /// Several threads compute the digest of this source, which has holes and ends within a step.
    #[test]
    fn digest_of_a_source_is_that_of_its_pages() {
        let len = 41 * STEP + 5 * PAGE;
        let file = File::from(rustix::fs::memfd_create("memory", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.set_len(len).unwrap();
        let mut expected = 0_u64;
        for at in (0..len).step_by(7 * PAGE as usize).filter(|at| at % (3 * STEP) < STEP).chain([len - PAGE])
        {
            let page = [(at / PAGE) as u8 | 1; PAGE as usize];
            file.write_all_at(&page, at).unwrap();
            expected = expected.wrapping_add(of_pages(at, &page));
        }
        let failed = |source| Error::host("read", source);
        let source = RawSource::whole(&file, len, &failed).unwrap();
        let progress = Progress::default();
        assert_eq!(of_source(&source, &progress).unwrap(), expected);
        let populated: u64 = source.populated().iter().map(|range| range.end - range.start).sum();
        assert_eq!(progress.done(), populated);
        file.set_len(len - PAGE).unwrap();
        assert_eq!(of_source(&source, &Progress::default()).unwrap_err().to_string(), "cannot read");
    }
}
