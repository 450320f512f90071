//! Presence of pages in memory that page faults fill. [`crate::memory::own_writes`] asks for pages before a
//! device touches them.
//!
//! A device thread that touched an unavailable chunk would get a signal, and end every VM of the process.
//! Therefore it fetches the chunk itself first: an error ends its VM alone. If this process fills the base,
//! no fault goes through userfaultfd. Over a shared pager, each missing chunk costs one fault that the pager
//! answers.
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
use crate::memory::lazy::known_pages::KnownPages;
use crate::memory::page_set::PageSet;
use crate::memory::range::Region;

/// The pages of one VM. See the module.
pub struct Presence {
    regions: Arc<[Region]>,
    there: Arc<KnownPages>,
    faults: Weak<Faults>,
    patience: Patience,
}

impl fmt::Debug for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presence").finish_non_exhaustive()
    }
}

/// The most times that pages are fetched anew for a guest that keeps returning others. After that, touching
/// them is a page fault.
const ATTEMPTS: u32 = 16;

/// The pages are unavailable. The VM has been told, and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unavailable;

impl Presence {
    /// For a VM's memory, with the pages over its base.
    pub(crate) fn new(regions: &Arc<[Region]>, faults: &Arc<Faults>, over: Option<&PageSet>) -> Self {
        let there = Arc::clone(faults.there());
        over.into_iter().flat_map(PageSet::page_ranges).for_each(|run| there.note(run));
        Self {
            regions: Arc::clone(regions),
            there,
            faults: Arc::downgrade(faults),
            patience: Patience::default(),
        }
    }

    /// Makes `len` bytes at a guest physical address present. Addresses outside RAM are left to the access.
    ///
    /// # Errors
    /// Some of them are unavailable.
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
        // Checked after the pages are recorded: a VM that has failed ends, and no device touches its memory.
        if self.there.has_failed.load(Ordering::SeqCst) { Err(Unavailable) } else { Ok(()) }
    }

    fn fetch(&self, range: Range<u64>) -> std::result::Result<(), Unavailable> {
        self.fetch_with(range, populate)
    }

    /// Fetches pages. `populate` reads them in if another process fetches.
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
            if let Err(error) = self.fetch_once(&faults, range.clone(), &mut populate) {
                faults.fail(&report(&error));
                return Err(Unavailable);
            }
            self.there.note(range.clone());
            if self.there.given.load(Ordering::SeqCst) == given {
                break;
            }
            // The guest may have returned some after they were fetched.
            self.there.known.clear(range.clone());
        }
        Ok(())
    }

    /// Fetches pages on this thread, or makes the kernel touch them if a pager process fills the base.
    ///
    /// The second way takes a userfaultfd round trip for each missing chunk, one after another: the kernel
    /// touches pages in their order and waits for each. Only the pager may write to a base that processes
    /// share, so this process cannot fetch a chunk, and a message would be a round trip too. A chunk that
    /// another VM touched is in the base and costs none, unless it is zero.
    fn fetch_once(
        &self,
        faults: &Faults,
        range: Range<u64>,
        populate: &mut impl FnMut(u64, u64) -> rustix::io::Result<()>,
    ) -> Result<()> {
        if faults.fetch(range.clone())? {
            return Ok(());
        }
        let (start, len) = (faults.start() + range.start, range.end - range.start);
        let failed =
            |errno| Error::host(format!("fill {} KiB of guest memory for a device", len >> 10), errno);
        self.patience.retry(|| populate(start, len)).map_err(failed)
    }

    /// Records that the guest returns pages, whose content becomes undefined. Called before they are dropped.
    pub(crate) fn note_given_back(&self, range: Range<u64>) {
        self.there.given_back.set(range);
    }

    /// Records that returned pages have defined content again.
    pub(crate) fn forget_given_back(&self, range: Range<u64>) {
        self.there.given_back.clear(range);
    }

    /// Drops pages with `act`. They may be missing afterwards.
    pub(crate) fn drop_pages<T>(&self, range: Range<u64>, act: impl FnOnce() -> T) -> T {
        self.there.known.clear(range.clone());
        let done = act();
        self.there.given.fetch_add(1, Ordering::SeqCst);
        // Pages that a device fetched and recorded meanwhile.
        self.there.known.clear(range);
        done
    }
}

/// Makes the kernel touch `len` bytes at `start` (MADV_POPULATE_READ, Linux 5.14), which returns an error
/// where a thread would get a signal.
pub(crate) fn populate(start: u64, len: u64) -> rustix::io::Result<()> {
    rustix::io::retry_on_intr(|| {
        // SAFETY: the range is guest memory, which the caller has mapped. Reading pages in changes no
        // content.
        unsafe { rustix::mm::madvise(start as *mut _, len as usize, Advice::LinuxPopulateRead) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forged_memory_size_takes_no_memory() {
        let resident = || {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * PAGE
        };
        let (claimed, before) = (64 << 40, resident());
        let there = KnownPages::new(claimed);
        there.note(claimed - PAGE..claimed);
        assert!(there.has(claimed - PAGE) && !there.has(0));
        // The bits of all of it would take 4 GiB.
        assert!(resident() < before + (1 << 30));
    }
}
