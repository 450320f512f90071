//! The base of guest memory, and the pages over it.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use crate::memory::PAGE;
use crate::memory::page_set::PageSet;

/// Size of the pages under guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSize {
    /// 4 KiB.
    Small,
    /// 2 MiB, of hugetlbfs. Smaller parts cannot be mapped, dropped or protected.
    Huge,
}

impl PageSize {
    /// Bytes of a page.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Small => PAGE,
            Self::Huge => 2 << 20,
        }
    }

    /// The pages that a range touches.
    #[must_use]
    pub fn around(self, range: &Range<u64>) -> Range<u64> {
        let bytes = self.bytes();
        range.start / bytes * bytes..range.end.next_multiple_of(bytes)
    }
}

/// Pages over a base.
#[derive(Clone, Debug)]
pub struct OverlayPages {
    /// The set of pages.
    pub pages: Arc<PageSet>,
    /// Their content, at their offsets. It never changes.
    pub file: Arc<File>,
}

/// The file under mapped RAM, and the part of it that is mapped private.
#[derive(Clone, Debug)]
pub struct Base {
    /// The file. Guest memory lies at `Region::offset`.
    pub file: Arc<File>,
    /// End of the private mapping: pages that the guest wrote below it are not in the file. Above it the file
    /// is mapped shared, and this VM is its only user.
    pub private_to: u64,
    /// Pages laid over the file.
    pub over: Option<Arc<PageSet>>,
    /// Whether anonymous memory is mapped where the file has holes. A page that the guest has not written may
    /// then count as private, with zeros.
    pub has_anonymous_holes: bool,
    /// Size of its pages. One of huge pages is never frozen: private copies of them could exhaust the host's
    /// pool, and a guest whose write finds it empty would end. Captures copy all of such memory.
    pub page_size: PageSize,
}
