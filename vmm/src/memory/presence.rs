//! Which pages of memory that is filled as it is touched are there: asked by the gate of [`super::writes`]
//! before a device touches them.
//!
//! A device thread of this process that touched a chunk that cannot be had would get a signal, and take
//! every VM of the process along. Here it fetches the chunk itself instead: an error is an error, and ends
//! that VM alone, and no fault goes through userfaultfd.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use rustix::io::Errno;
use rustix::mm::Advice;

use super::PAGE;
use super::faults::Faults;
use super::pages::PageSet;
use super::ram::Region;
use crate::error::{Error, Result, report};

/// The pages of one VM. See the module.
pub struct Presence {
    regions: Arc<[Region]>,
    /// A bit a page: those known to be there.
    there: Box<[AtomicU64]>,
    faults: Weak<Faults>,
}

impl fmt::Debug for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presence").finish_non_exhaustive()
    }
}

/// The pages are not there and cannot be had. The VM has been told, and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unavailable;

impl Presence {
    /// Of a VM's memory, with the pages that lie over its base.
    pub(super) fn new(regions: &Arc<[Region]>, faults: &Arc<Faults>, over: Option<&PageSet>) -> Self {
        let words = faults.len().div_ceil(PAGE * 64);
        let there: Box<[AtomicU64]> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let presence = Self { regions: Arc::clone(regions), there, faults: Arc::downgrade(faults) };
        over.into_iter().flat_map(PageSet::runs).for_each(|run| presence.note(run));
        presence
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
            if self.is_there(at) {
                at += PAGE;
                continue;
            }
            let start = at;
            while at < range.end && !self.is_there(at) {
                at += PAGE;
            }
            let faults = self.faults.upgrade().ok_or(Unavailable)?;
            if faults.failure().is_some() {
                return Err(Unavailable);
            }
            if let Err(error) = bring(&faults, start..at) {
                faults.fail(&report(&error));
                return Err(Unavailable);
            }
            self.note(start..at);
        }
        Ok(())
    }

    fn note(&self, range: Range<u64>) {
        range.step_by(PAGE as usize).for_each(|page| {
            let (word, bit) = self.bit(page);
            word.fetch_or(bit, Ordering::Relaxed);
        });
    }

    /// These pages may be missing again: they were given back.
    pub(super) fn forget(&self, range: Range<u64>) {
        range.step_by(PAGE as usize).for_each(|page| {
            let (word, bit) = self.bit(page);
            word.fetch_and(!bit, Ordering::Relaxed);
        });
    }

    fn is_there(&self, offset: u64) -> bool {
        let (word, bit) = self.bit(offset);
        word.load(Ordering::Relaxed) & bit != 0
    }

    fn bit(&self, offset: u64) -> (&AtomicU64, u64) {
        let page = offset / PAGE;
        (&self.there[(page / 64) as usize], 1 << (page % 64))
    }
}

/// Fetches pages on this thread, or has the kernel touch them where another process fetches: it has an error
/// where a thread has a signal.
fn bring(faults: &Faults, range: Range<u64>) -> Result<()> {
    if faults.bring(range.clone())? || !can_populate() {
        return Ok(());
    }
    let (start, len) = (faults.start() + range.start, range.end - range.start);
    // SAFETY: the range is guest memory, which whoever asks has mapped. To read pages in changes no content.
    let done = unsafe { rustix::mm::madvise(start as *mut _, len as usize, Advice::LinuxPopulateRead) };
    done.map_err(|errno| Error::host(format!("have {} KiB of guest memory for a device", len >> 10), errno))
}

/// Whether the kernel reads pages in on demand (Linux 5.14).
fn can_populate() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    // SAFETY: nothing is asked for of no memory.
    let probe = || unsafe { rustix::mm::madvise(std::ptr::null_mut(), 0, Advice::LinuxPopulateRead) };
    *CAN.get_or_init(|| probe() != Err(Errno::INVAL))
}
