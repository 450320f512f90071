//! The base of guest memory, and pages that lie over it.

use std::fs::File;
use std::sync::Arc;

use crate::memory::page_set::PageSet;

/// Pages that lie over a base.
#[derive(Clone, Debug)]
pub struct OverlayPages {
    /// Which.
    pub pages: Arc<PageSet>,
    /// Their content, at their offsets. It never changes.
    pub file: Arc<File>,
}

/// The file under a mapped RAM, and how far the guest's writes stay out of it.
#[derive(Clone, Debug)]
pub struct Base {
    /// The file; guest memory at `Region::offset`.
    pub file: Arc<File>,
    /// Below this offset it is mapped private: pages that the guest wrote are not in the file. Above, it is mapped shared, and
    /// nobody else has it.
    pub private_to: u64,
    /// Pages that were laid over it.
    pub over: Option<Arc<PageSet>>,
}
