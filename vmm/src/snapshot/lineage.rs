//! A snapshot that has a VM's memory but for pages that are known: what a diff of the VM is relative to.

use std::sync::Arc;

use crate::memory::page_set::PageSet;
use crate::snapshot::format::manifest::BaseSnapshot;

/// A snapshot that a diff could be relative to.
#[derive(Clone, Debug)]
pub(crate) struct Lineage {
    /// The snapshot.
    pub base: BaseSnapshot,
    /// Which pages may differ from the snapshot's.
    pub may_differ: PagesToCapture,
}

/// The pages that a capture copies.
#[derive(Clone, Debug)]
pub(crate) enum PagesToCapture {
    /// Every page of the VM's memory that is not its base's, and these. The first capture of a VM copies them.
    NotBase(Option<Arc<PageSet>>),
    /// These, and the pages written since the last capture, which KVM's dirty log and `memory::own_writes` know.
    Written(PageSet),
}

impl PagesToCapture {
    /// Those that are known already, if there are any.
    pub fn pages(&self) -> Option<&PageSet> {
        match self {
            Self::NotBase(pages) => pages.as_deref(),
            Self::Written(pages) => Some(pages),
        }
    }
}
