//! The one gate through which everything but the guest writes to guest memory, and what it remembers: KVM's dirty log knows only
//! what the guest wrote.
//!
//! All access goes through vm-memory, whose slices of memory carry this bitmap and mark what is written through them, afterwards:
//! a page that is copied between a write and its mark is copied again. What the kernel is asked to write (readv into a buffer)
//! the slices cannot see: whoever asks says so with `Buffers::written`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use vm_memory::bitmap::{Bitmap, NewBitmap, RefSlice, WithBitmapSlice};

use vm_memory::GuestMemoryBackend;

use crate::memory::PAGE;
use crate::memory::lazy::presence::Presence;

/// Guest memory as everyone has it.
pub type GuestMemory = vm_memory::GuestMemoryMmap<OwnWrites>;
/// A stretch of it.
pub type Slice<'m> = vm_memory::VolatileSlice<'m, RefSlice<'m, OwnWrites>>;

/// Pages of a region that were written by other than the guest since it was asked last.
#[derive(Debug, Default)]
pub struct OwnWrites {
    /// Bytes of the region.
    len: u64,
    /// Made when somebody first wants to know. What was written before is found in the page tables.
    words: OnceLock<Box<[AtomicU64]>>,
    /// Which pages are there, where they are filled as they are touched.
    presence: OnceLock<Arc<Presence>>,
}

/// Which pages of memory are there. None where all are: nothing is to be asked then.
#[must_use]
pub fn presence(memory: &GuestMemory) -> Option<&Presence> {
    memory.iter().next()?.bitmap().presence.get().map(|presence| &**presence)
}

impl OwnWrites {
    /// Of a region of `len` bytes. Nothing is remembered yet.
    pub(crate) fn new(len: u64) -> Self {
        Self { len, words: OnceLock::new(), presence: OnceLock::new() }
    }

    /// Begins to remember.
    pub(crate) fn begin(&self) {
        let words = self.len.div_ceil(PAGE * 64);
        self.words.get_or_init(|| (0..words).map(|_| AtomicU64::new(0)).collect());
    }

    /// From now on pages are asked for before a device touches them.
    pub(crate) fn ask_for(&self, presence: &Arc<Presence>) {
        let _ = self.presence.set(Arc::clone(presence));
    }

    /// What was written, a bit a page; from now on it is forgotten.
    pub(crate) fn take(&self) -> impl Iterator<Item = u64> + '_ {
        // A look first: most words are empty, and to write them would take them from other CPUs' caches.
        let take = |word: &AtomicU64| match word.load(Ordering::Relaxed) {
            0 => 0,
            _ => word.swap(0, Ordering::AcqRel),
        };
        self.words.get().into_iter().flatten().map(take)
    }
}

impl<'a> WithBitmapSlice<'a> for OwnWrites {
    type S = RefSlice<'a, Self>;
}

impl NewBitmap for OwnWrites {
    fn with_len(len: usize) -> Self {
        Self::new(len as u64)
    }
}

impl Bitmap for OwnWrites {
    fn mark_dirty(&self, offset: usize, len: usize) {
        let Some(words) = self.words.get() else { return };
        if len == 0 {
            return;
        }
        let (offset, len) = (offset as u64, len as u64);
        for page in offset / PAGE..=(offset + len - 1) / PAGE {
            let bit = 1 << (page % 64);
            if let Some(word) = words.get((page / 64) as usize) {
                word.fetch_or(bit, Ordering::AcqRel);
            }
        }
    }

    fn dirty_at(&self, offset: usize) -> bool {
        let page = offset as u64 / PAGE;
        let word = self.words.get().and_then(|words| words.get((page / 64) as usize));
        word.is_some_and(|word| word.load(Ordering::Acquire) & 1 << (page % 64) != 0)
    }

    fn slice_at(&self, offset: usize) -> RefSlice<'_, Self> {
        RefSlice::new(self, offset)
    }
}
