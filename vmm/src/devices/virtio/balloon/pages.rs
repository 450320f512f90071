//! Pages that a driver gives, as a list of page numbers or as the buffers themselves. Whole pages of RAM are
//! returned to the host; others are counted and left alone.

use std::ops::Range;

use crate::devices::virtio::chain::Buffers;
use crate::error::report;
use crate::memory::PAGE;
use crate::memory::ram::GuestRam;
use crate::memory::reclaim::give_back;

/// Length of a page number in a list, in bytes.
pub(super) const PFN: usize = 4;

/// Returns pages and counts them.
#[derive(Debug, Default)]
pub(super) struct Pages {
    /// Number of returned pages.
    pub returned: u64,
    /// Number of pages that cannot be returned.
    pub ignored: u64,
    /// Whether a refusal of the host has been logged. A guest can cause any number of them.
    complained: bool,
}

impl Pages {
    /// Returns the pages of a list of 32-bit little-endian page numbers.
    pub fn listed(&mut self, ram: &GuestRam, mut list: Buffers<'_>) {
        let mut bytes = vec![0; list.len()];
        list.read(&mut bytes);
        let number = |pfn: &[u8]| u32::from_le_bytes(pfn.try_into().expect("four bytes"));
        let mut pfns: Vec<u32> = bytes.chunks_exact(PFN).map(number).collect();
        #[cfg(feature = "fuzzing")]
        pfns.iter()
            .for_each(|pfn| crate::devices::virtio::fuzzing_hooks::grant(u64::from(*pfn) * PAGE, PAGE));
        // A driver lists pages in the order in which it found them, often from the last to the first.
        pfns.sort_unstable();
        pfns.dedup();
        for run in pfns.chunk_by(|one, next| one + 1 == *next) {
            let start = u64::from(run[0]) * PAGE;
            self.range(ram, start..start + run.len() as u64 * PAGE);
        }
    }

    /// Returns the pages of buffers. Returns the number of buffers.
    pub fn buffers(&mut self, ram: &GuestRam, buffers: &Buffers<'_>) -> usize {
        let pieces = buffers.iovecs();
        for piece in &pieces {
            let at = ram.guest_address(piece.iov_base as u64).expect("buffers are guest memory");
            let end = (at + piece.iov_len as u64) / PAGE * PAGE;
            let start = at.next_multiple_of(PAGE);
            match start < end {
                true => self.range(ram, start..end),
                false => self.ignored += 1,
            }
        }
        pieces.len()
    }

    /// Returns those pages of a range that are RAM.
    fn range(&mut self, ram: &GuestRam, pages: Range<u64>) {
        let mut outside = pages.end - pages.start;
        for region in ram.regions() {
            let start = pages.start.max(region.gpa);
            let end = pages.end.min(region.gpa + region.len);
            if start >= end {
                continue;
            }
            outside -= end - start;
            match give_back(ram, start, end - start) {
                Ok(bytes) => self.returned += bytes / PAGE,
                Err(error) => {
                    if !self.complained {
                        log::warn!("balloon: {}", report(&error));
                    }
                    self.complained = true;
                }
            }
        }
        self.ignored += outside / PAGE;
    }
}
