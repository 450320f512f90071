//! The pages of a VM that are known to be present.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::memory::PAGE;

/// The pages that a refusal spares, and whether memory is unavailable.
///
/// A device records pages before it checks for a failure, and a refusal comes after the failure and then
/// reads the record. Thus no device touches a refused page. A dropped page is forgotten after it is gone; a
/// device that fetched it before and records it after sees another `given`. A page that a device uses
/// meanwhile may be missing when it is touched: a refusal makes it a page of zeros.
#[derive(Debug)]
pub(crate) struct KnownPages {
    /// Pages known to be present.
    pub(super) known: Bits,
    /// Pages that the guest returned since the last rewind. Their content is undefined unless they are known
    /// again.
    pub(super) given_back: Bits,
    pub(super) has_failed: AtomicBool,
    /// Number of times that pages were dropped.
    pub(super) given: AtomicU64,
}

/// A bit for each page.
#[derive(Debug)]
pub(super) struct Bits(Box<[AtomicU64]>);

impl Bits {
    /// An empty set for `len` bytes of memory. Unset parts take no memory: a forged snapshot may claim tens
    /// of TiB, whose bits would take GiBs.
    pub(super) fn new(len: u64) -> Self {
        let zeros = Box::<[AtomicU64]>::new_zeroed_slice(len.div_ceil(PAGE * 64) as usize);
        // SAFETY: bytes of zeros are an AtomicU64.
        Self(unsafe { zeros.assume_init() })
    }

    pub(super) fn set(&self, range: Range<u64>) {
        range.step_by(PAGE as usize).for_each(|page| {
            let (word, bit) = self.at(page);
            word.fetch_or(bit, Ordering::SeqCst);
        });
    }

    pub(super) fn clear(&self, range: Range<u64>) {
        range.step_by(PAGE as usize).for_each(|page| {
            let (word, bit) = self.at(page);
            word.fetch_and(!bit, Ordering::SeqCst);
        });
    }

    pub(super) fn has(&self, offset: u64) -> bool {
        let (word, bit) = self.at(offset);
        word.load(Ordering::SeqCst) & bit != 0
    }

    fn at(&self, offset: u64) -> (&AtomicU64, u64) {
        let page = offset / PAGE;
        (&self.0[(page / 64) as usize], 1 << (page % 64))
    }
}

impl KnownPages {
    /// Covers `len` bytes of memory, with no page known.
    pub fn new(len: u64) -> Self {
        let (known, given_back) = (Bits::new(len), Bits::new(len));
        Self { known, given_back, has_failed: AtomicBool::new(false), given: AtomicU64::new(0) }
    }

    /// Records that memory is unavailable, before it is refused.
    pub fn fail(&self) {
        self.has_failed.store(true, Ordering::SeqCst);
    }

    pub fn note(&self, range: Range<u64>) {
        self.known.set(range);
    }

    pub fn has(&self, offset: u64) -> bool {
        self.known.has(offset)
    }

    /// Whether the guest returned the page, and no device is known to have fetched it since.
    pub fn is_given_back(&self, offset: u64) -> bool {
        self.given_back.has(offset) && !self.has(offset)
    }
}
