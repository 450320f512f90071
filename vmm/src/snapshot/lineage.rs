//! Where a VM comes from, as far as a diff of it is concerned: a whole snapshot that has the VM's memory but for pages that are
//! known.

use std::sync::Arc;

use super::manifest::BaseSnapshot;
use crate::memory::pages::PageSet;

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
    /// All that are not the base's of the VM's memory, and these: nothing has been captured of the VM yet.
    NotBase(Arc<PageSet>),
    /// These, and what was written since the VM was captured last, which KVM and the gate of `memory::writes` know.
    Written(PageSet),
}

impl Lineage {
    /// The VM was captured for something else; so much had been written since the time before.
    pub fn captured(&mut self, written: &PageSet) {
        if let Differ::Written(pages) = &mut self.differ {
            pages.add_all(written);
        }
    }
}
