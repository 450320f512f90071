//! The snapshot that a diff of a VM is relative to, and the pages in which the VM may differ from it.

use std::sync::Arc;

use crate::memory::page_set::PageSet;
use crate::snapshot::format::manifest::BaseSnapshot;

/// A snapshot that a diff could be relative to.
#[derive(Clone, Debug)]
pub(crate) struct Lineage {
    /// The snapshot.
    pub base: BaseSnapshot,
    /// The pages in which the VM's memory may differ from the snapshot's.
    pub may_differ: PagesToCapture,
}

/// The pages that a capture copies.
#[derive(Clone, Debug)]
pub(crate) enum PagesToCapture {
    /// Every page of the VM's memory that differs from its base's, and these: for the first capture of a VM.
    NotBase(Option<Arc<PageSet>>),
    /// These, and the pages written since the last capture (KVM's dirty log and `memory::own_writes`).
    Written(PageSet),
}

impl PagesToCapture {
    /// The listed pages of either kind.
    pub fn pages(&self) -> Option<&PageSet> {
        match self {
            Self::NotBase(pages) => pages.as_deref(),
            Self::Written(pages) => Some(pages),
        }
    }
}
