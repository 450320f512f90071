//! The snapshots that a VM relates to: the one that a diff is relative to, and the one that a rewind returns
//! to.
//!
//! Reading the dirty log clears it, so every result goes to both.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Result, report};
use crate::machine::MachineState;
use crate::memory::PAGE;
use crate::memory::base::OverlayPages;
use crate::memory::files::lease::{LeaseListener, Leases};
use crate::memory::page_set::PageSet;
use crate::run_control::Control;
use crate::snapshot::format::working_set::WorkingSetFile;
use crate::snapshot::lineage::{Lineage, PagesToCapture};
use crate::snapshot::opened::memory::LazyMemory;

/// The longest wait for the vCPUs of a VM that has ended. A healthy host needs less.
const TO_STOP: Duration = Duration::from_secs(1);

/// A VM that has written so many pages more, 32 MiB, begins the working set of its forks' children anew: they
/// touch other memory then.
const OUTDATED: u64 = (32 << 20) / PAGE;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The snapshot that a diff would be relative to.
    pub lineage: Option<Lineage>,
    /// The pages in which the VM's memory may differ from that of the snapshot taken or restored last,
    /// whatever its form. Absent before the first one, and in a fork's child.
    pub since_last: Option<PagesToCapture>,
    /// The snapshot that a rewind returns to.
    pub origin: Option<RestoredFrom>,
    /// Whether the VM's origin is a template, to which no rewind returns.
    pub is_of_template: bool,
    /// The working set of the VM's forks' children, once there was a fork.
    pub for_children: Option<WorkingSetOfChildren>,
}

/// The place of the working set of a VM's forks' children.
#[derive(Debug)]
pub(crate) struct WorkingSetOfChildren {
    place: Arc<WorkingSetFile>,
    /// Pages that differed from the VM's base when the place was made.
    differed: u64,
}

/// A snapshot that a VM was restored from.
#[derive(Debug)]
pub(crate) struct RestoredFrom {
    /// Its state file, for errors; a snapshot in memory has none.
    pub path: PathBuf,
    /// The machine's state, without memory.
    pub machine: Arc<MachineState>,
    /// Memory that fills the VM's base on touch. A fork's children share it. Absent if the base is complete.
    pub lazy: Option<LazyMemory>,
    /// Pages that lie over the base.
    pub over: Option<OverlayPages>,
    /// Pages written since the restore. Absent if only the page tables know them.
    pub changed: Option<PageSet>,
    /// The files that the VM's memory maps.
    pub files: Arc<Leases>,
    /// Listeners for a lease that breaks, once [`RestoredFrom::hold`] took leases.
    pub listeners: Vec<LeaseListener>,
}

impl RestoredFrom {
    /// Ends the VM before another program changes a file that its memory maps.
    pub fn hold(&mut self, control: &Arc<Control>) {
        if self.listeners.is_empty() {
            let control = Arc::downgrade(control);
            self.listeners = self.files.subscribe(move |why| {
                if let Some(control) = control.upgrade() {
                    control.end(Err(why.to_owned()));
                    control.wait_parked(TO_STOP);
                }
            });
        }
    }
}

impl History {
    /// The packed memory that fills the VM's base on touch, if there is one.
    pub fn lazy(&self) -> Option<&LazyMemory> {
        self.origin.as_ref().and_then(|origin| origin.lazy.as_ref())
    }

    /// The place of the working set of a fork's children. `differs` pages of `bytes` of memory differ from
    /// the VM's base now. A working set is advice: there is none if the host refuses a file in memory.
    pub fn working_set_of_children(&mut self, bytes: u64, differs: u64) -> Option<Arc<WorkingSetFile>> {
        if let Some(WorkingSetOfChildren { place, differed }) = &self.for_children
            && differs.abs_diff(*differed) < OUTDATED
        {
            return Some(Arc::clone(place));
        }
        log::debug!("children of forks begin a working set: {differs} pages differ from the VM's base");
        let place = WorkingSetFile::of_children(bytes).inspect_err(|error| log::warn!("{}", report(error)));
        let place = place.ok()?;
        self.for_children = Some(WorkingSetOfChildren { place: Arc::clone(&place), differed: differs });
        Some(place)
    }

    /// Lets `act` add the pages written since the last call to a set over `bytes` of memory, and records them
    /// here even if `act` fails.
    pub fn collect_dirty<T>(&mut self, bytes: u64, act: impl FnOnce(&mut PageSet) -> Result<T>) -> Result<T> {
        let mut written = PageSet::none(bytes);
        let done = act(&mut written);
        self.changed(&written);
        if let Some(RestoredFrom { changed: Some(pages), .. }) = &mut self.origin {
            pages.add_all(&written);
        }
        done
    }

    /// Makes a full snapshot the only base of a later diff.
    pub fn forget(&mut self) {
        (self.lineage, self.since_last) = (None, None);
    }

    /// Records that a snapshot of `bytes` of memory was published. It becomes the base of diffs, unless it is
    /// a template. Its pages have left the dirty log, so an earlier snapshot is no base then either.
    pub fn published(&mut self, next: Lineage, bytes: u64, is_template: bool) {
        if is_template {
            self.forget();
        } else {
            self.lineage = Some(next);
            self.taken(bytes);
        }
    }

    /// Records that a snapshot of `bytes` of memory was taken.
    pub fn taken(&mut self, bytes: u64) {
        self.since_last = Some(PagesToCapture::Written(PageSet::none(bytes)));
    }

    /// Records pages that changed since the last capture.
    pub fn changed(&mut self, changed: &PageSet) {
        let since_base = self.lineage.as_mut().map(|lineage| &mut lineage.may_differ);
        for pages in [since_base, self.since_last.as_mut()].into_iter().flatten() {
            if let PagesToCapture::Written(pages) = pages {
                pages.add_all(changed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn working_set_of_children_is_begun_anew_once_the_parent_has_written_much() {
        let mut history = History::default();
        let mut place = |differs| history.working_set_of_children(1 << 30, differs).unwrap();
        let first = place(100);
        assert!(Arc::ptr_eq(&first, &place(100)) && Arc::ptr_eq(&first, &place(99 + OUTDATED)));
        let second = place(100 + OUTDATED);
        assert!(!Arc::ptr_eq(&first, &second) && Arc::ptr_eq(&second, &place(101)));
        // A rewind has undone what was written.
        assert!(!Arc::ptr_eq(&second, &place(0)));
    }
}
