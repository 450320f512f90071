//! Where a VM comes from: what a diff of it is relative to, and the snapshot that it can be rewound to.
//!
//! Reading the dirty log clears it, so every result goes to both.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::machine::MachineState;
use crate::memory::base::OverlayPages;
use crate::memory::files::lease::{Leases, Listener};
use crate::memory::page_set::PageSet;
use crate::run_control::Control;
use crate::snapshot::lineage::{Lineage, PagesToCapture};
use crate::snapshot::opened::memory::LazyMemory;

/// The vCPUs of a VM that has ended come to a stop within this, or never.
const TO_STOP: Duration = Duration::from_secs(1);

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// What a diff would be relative to.
    pub lineage: Option<Lineage>,
    /// What the VM can be rewound to.
    pub origin: Option<RestoredFrom>,
}

/// A snapshot that a VM was restored from.
#[derive(Debug)]
pub(crate) struct RestoredFrom {
    /// Its state file, for errors.
    pub path: PathBuf,
    /// All but memory.
    pub machine: Arc<MachineState>,
    /// The memory that fills its base on touch, for its children; none if all of the base is there.
    pub lazy: Option<LazyMemory>,
    /// What lies over its base.
    pub over: Option<OverlayPages>,
    /// The pages that were written since; none where the page tables have to be asked.
    pub changed: Option<PageSet>,
    /// What its memory is made of.
    pub files: Arc<Leases>,
    /// Who is told when that is about to change, once somebody is.
    pub listeners: Vec<Listener>,
}

impl RestoredFrom {
    /// From now on the VM ends before the files change that its memory is made of.
    pub fn hold(&mut self, control: &Arc<Control>) {
        if self.listeners.is_empty() {
            let control = Arc::downgrade(control);
            self.listeners = self.files.tell(move |why| {
                if let Some(control) = control.upgrade() {
                    control.end(Err(why.to_owned()));
                    control.wait_parked(TO_STOP);
                }
            });
        }
    }
}

impl History {
    /// The packed memory that fills the VM's base on touch, if some does.
    pub fn lazy(&self) -> Option<&LazyMemory> {
        self.origin.as_ref().and_then(|origin| origin.lazy.as_ref())
    }

    /// Lets `act` ask what was written to the VM, which has `bytes` of memory, since it was asked last. Even if it fails that is known
    /// from then on.
    pub fn asking<T>(&mut self, bytes: u64, act: impl FnOnce(&mut PageSet) -> Result<T>) -> Result<T> {
        let mut written = PageSet::none(bytes);
        let done = act(&mut written);
        self.changed(&written);
        if let Some(RestoredFrom { changed: Some(pages), .. }) = &mut self.origin {
            pages.add_all(&written);
        }
        done
    }

    /// Pages are not what they were when the VM was captured last.
    pub fn changed(&mut self, changed: &PageSet) {
        if let Some(Lineage { may_differ: PagesToCapture::Written(pages), .. }) = &mut self.lineage {
            pages.add_all(changed);
        }
    }
}
