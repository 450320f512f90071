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
    pub differ: Differ,
}

/// Pages that may differ.
#[derive(Clone, Debug)]
pub(crate) enum Differ {
    /// All that are not the base's of the VM's memory, and these if there are any: nothing has been captured of the VM yet.
    NotBase(Option<Arc<PageSet>>),
    /// These, and what was written since the VM was captured last, which KVM and the gate of `memory::writes` know.
    Written(PageSet),
}

impl Differ {
    /// Those that are known already, if there are any.
    pub fn pages(&self) -> Option<&PageSet> {
        match self {
            Self::NotBase(pages) => pages.as_deref(),
            Self::Written(pages) => Some(pages),
        }
    }
}
