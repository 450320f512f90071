//! Which pages of memory that is filled as it is touched are there: asked by the gate of [`crate::memory::own_writes`]
//! before a device touches them.
//!
//! A device thread of this process that touched a chunk that cannot be had would get a signal, and take
//! every VM of the process along. Here it fetches the chunk itself instead: an error is an error, and ends
//! that VM alone. Where this process fills the base, no fault goes through userfaultfd. Over a shared pager
//! each chunk that is missing costs one fault that the pager answers.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use rustix::mm::Advice;

use super::faults::Faults;
use super::patience::Patience;
use crate::error::{Error, Result, report};
use crate::memory::PAGE;
use crate::memory::lazy::known_pages::There;
use crate::memory::page_set::PageSet;
use crate::memory::range::Region;

/// The pages of one VM. See the module.
pub struct Presence {
    regions: Arc<[Region]>,
    there: Arc<There>,
    faults: Weak<Faults>,
    patience: Patience,
}

impl fmt::Debug for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presence").finish_non_exhaustive()
    }
}

/// How often pages are fetched anew for a guest that gives others back all the time. After that, touching
/// them is a page fault.
const ATTEMPTS: u32 = 16;

/// The pages are not there and cannot be had. The VM has been told, and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unavailable;

impl Presence {
    /// Of a VM's memory, with the pages that lie over its base.
    pub(crate) fn new(regions: &Arc<[Region]>, faults: &Arc<Faults>, over: Option<&PageSet>) -> Self {
        let there = Arc::clone(faults.there());
        over.into_iter().flat_map(PageSet::runs).for_each(|run| there.note(run));
        Self {
            regions: Arc::clone(regions),
            there,
            faults: Arc::downgrade(faults),
            patience: Patience::default(),
        }
    }

    /// Has `len` bytes at a guest physical address there. What is no memory is left to whoever touches it.
    ///
    /// # Errors
    /// Some of them cannot be had.
    pub fn ensure(&self, gpa: u64, len: u64) -> std::result::Result<(), Unavailable> {
        let end = gpa.saturating_add(len);
        for region in self.regions.iter() {
            let (from, to) = (gpa.max(region.gpa), end.min(region.gpa + region.len));
            if from < to {
                let offset = |gpa: u64| region.offset + gpa - region.gpa;
                self.ensure_offsets(offset(from) / PAGE * PAGE..offset(to).next_multiple_of(PAGE))?;
            }
        }
        Ok(())
    }

    fn ensure_offsets(&self, range: Range<u64>) -> std::result::Result<(), Unavailable> {
        let mut at = range.start;
        while at < range.end {
            if self.there.has(at) {
                at += PAGE;
                continue;
            }
            let start = at;
            while at < range.end && !self.there.has(at) {
                at += PAGE;
            }
            self.fetch(start..at)?;
        }
        // Looked at after the pages are noted: a VM that has failed ends, and no device touches its memory.
        if self.there.has_failed.load(Ordering::SeqCst) { Err(Unavailable) } else { Ok(()) }
    }

    fn fetch(&self, range: Range<u64>) -> std::result::Result<(), Unavailable> {
        self.fetch_with(range, populate)
    }

    /// Fetches pages, with `populate` for the call that reads them in where another process fetches.
    pub(crate) fn fetch_with(
        &self,
        range: Range<u64>,
        mut populate: impl FnMut(u64, u64) -> rustix::io::Result<()>,
    ) -> std::result::Result<(), Unavailable> {
        let faults = self.faults.upgrade().ok_or(Unavailable)?;
        if self.there.has_failed.load(Ordering::SeqCst) {
            return Err(Unavailable);
        }
        for _ in 0..ATTEMPTS {
            let given = self.there.given.load(Ordering::SeqCst);
            if let Err(error) = self.bring(&faults, range.clone(), &mut populate) {
                faults.fail(&report(&error));
                return Err(Unavailable);
            }
            self.there.note(range.clone());
            if self.there.given.load(Ordering::SeqCst) == given {
                break;
            }
            // Some may have been given back after they were fetched.
            self.there.known.clear(range.clone());
        }
        Ok(())
    }

    /// Fetches pages on this thread, or has the kernel touch them where a pager process fills the base.
    ///
    /// The second way takes a userfaultfd round trip for each missing chunk, one after the other: the kernel
    /// touches pages in their order and waits for each. Only the pager may write to a base that several
    /// processes share, so this process cannot fetch a chunk, and asking by a message is a round trip too. A
    /// chunk that another VM has touched is in the base already and costs none, unless it is zero.
    fn bring(
        &self,
        faults: &Faults,
        range: Range<u64>,
        populate: &mut impl FnMut(u64, u64) -> rustix::io::Result<()>,
    ) -> Result<()> {
        if faults.bring(range.clone())? {
            return Ok(());
        }
        let (start, len) = (faults.start() + range.start, range.end - range.start);
        let failed =
            |errno| Error::host(format!("have {} KiB of guest memory for a device", len >> 10), errno);
        self.patience.retry(|| populate(start, len)).map_err(failed)
    }

    /// Records that the guest gives pages back: their content is undefined. Called before they are dropped.
    pub(crate) fn note_given_back(&self, range: Range<u64>) {
        self.there.given_back.set(range);
    }

    /// Records that the content of pages that the guest gave back is defined again.
    pub(crate) fn forget_given_back(&self, range: Range<u64>) {
        self.there.given_back.clear(range);
    }

    /// Drops pages with `act`, after which they may be missing again.
    pub(crate) fn drop_pages<T>(&self, range: Range<u64>, act: impl FnOnce() -> T) -> T {
        self.there.known.clear(range.clone());
        let done = act();
        self.there.given.fetch_add(1, Ordering::SeqCst);
        // Those that a device fetched and noted meanwhile.
        self.there.known.clear(range);
        done
    }
}

/// Has the kernel touch `len` bytes at `start` (MADV_POPULATE_READ, Linux 5.14), which answers with an error
/// where a thread has a signal.
fn populate(start: u64, len: u64) -> rustix::io::Result<()> {
    rustix::io::retry_on_intr(|| {
        // SAFETY: the range is guest memory, which the caller has mapped. Reading pages in changes nothing.
        unsafe { rustix::mm::madvise(start as *mut _, len as usize, Advice::LinuxPopulateRead) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_a_forged_snapshot_claims_takes_no_memory_here() {
        let resident = || {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * PAGE
        };
        let (claimed, before) = (64 << 40, resident());
        let there = There::new(claimed);
        there.note(claimed - PAGE..claimed);
        assert!(there.has(claimed - PAGE) && !there.has(0));
        // The bits of all of it are 4 GiB.
        assert!(resident() < before + (1 << 30));
    }
}
