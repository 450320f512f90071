//! The base of guest memory, and the pages over it.

use std::fs::File;
use std::sync::Arc;

use crate::memory::page_set::PageSet;

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
}
