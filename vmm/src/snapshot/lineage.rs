//! Where a VM comes from, as far as a diff of it is concerned: a whole snapshot that has the VM's memory but for pages that are
//! known.

use std::sync::Arc;

use super::manifest::BaseSnapshot;
use crate::memory::pages::PageSet;

/// A snapshot that a diff could be relative to. Every page that is neither private nor in `apart` has what the snapshot has.
#[derive(Clone, Debug)]
pub(crate) struct Lineage {
    /// The snapshot.
    pub base: BaseSnapshot,
    /// Pages that are not the snapshot's though they may not be private: those of a diff that the VM was restored from, and those
    /// that were private when the snapshot was taken. A page that is given back has the content of the VM's base again.
    pub apart: Arc<PageSet>,
}
