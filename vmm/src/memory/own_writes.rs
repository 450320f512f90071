//! This process's own writes to guest memory. KVM's dirty log has only those of the guest.
//!
//! All access goes through vm-memory, whose slices carry this bitmap and mark pages after writing them. A
//! page that is copied between a write and its mark is copied again. The slices cannot see writes by the
//! kernel (readv into a buffer), so callers report those with `Buffers::written`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use vm_memory::bitmap::{Bitmap, NewBitmap, RefSlice, WithBitmapSlice};

use vm_memory::GuestMemoryBackend;

use crate::memory::PAGE;
use crate::memory::lazy::presence::Presence;

/// Guest memory with this bitmap.
pub type GuestMemory = vm_memory::GuestMemoryMmap<OwnWrites>;
/// A slice of guest memory.
pub type Slice<'m> = vm_memory::VolatileSlice<'m, RefSlice<'m, OwnWrites>>;

/// Pages of a region that this process wrote since the last query.
#[derive(Debug, Default)]
pub struct OwnWrites {
    /// Length of the region in bytes.
    len: u64,
    /// The bitmap, made at the first query. The page tables tell earlier writes.
    words: OnceLock<Box<[AtomicU64]>>,
    /// Present pages, if page faults fill the region.
    presence: OnceLock<Arc<Presence>>,
}

/// Present pages of the region. Absent if all are present, so devices ask for none.
#[must_use]
pub fn presence(memory: &GuestMemory) -> Option<&Presence> {
    memory.iter().next()?.bitmap().presence.get().map(|presence| &**presence)
}

impl OwnWrites {
    /// For a region of `len` bytes. Records nothing yet.
    pub(crate) fn new(len: u64) -> Self {
        Self { len, words: OnceLock::new(), presence: OnceLock::new() }
    }

    /// Starts to record writes.
    pub(crate) fn begin(&self) {
        let words = self.len.div_ceil(PAGE * 64);
        self.words.get_or_init(|| (0..words).map(|_| AtomicU64::new(0)).collect());
    }

    /// Makes devices ask for pages before they touch them.
    pub(crate) fn ask_for(&self, presence: &Arc<Presence>) {
        let _ = self.presence.set(Arc::clone(presence));
    }

    /// Returns and clears the record: a bit for each page.
    pub(crate) fn take(&self) -> impl Iterator<Item = u64> + '_ {
        // Reads first: most words are empty, and writing them would invalidate other CPUs' caches.
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
