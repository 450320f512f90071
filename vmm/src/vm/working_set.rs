//! Working sets of a VM: recording one, and reading one ahead.

use std::sync::Arc;

use crate::error::{Error, Result, report};
use crate::machine::LentVcpu;
use crate::memory::PAGE;
use crate::memory::dirty::populated::touched_pages;
use crate::memory::lazy::prefetch::{PageRanges, PrefetchProgress};
use crate::memory::prefault::{copy_in, map_in, populate};
use crate::memory::ram::GuestRam;
use crate::snapshot::RecordingSummary;
use crate::snapshot::format::working_set::{Plan, WorkingSet};
use crate::snapshot::restore::record::Recording;
use crate::sync::lock;
use crate::vm::Vm;

/// The state of reading ahead.
#[derive(Debug)]
pub(crate) enum PrefetchState {
    /// Nothing.
    Nothing,
    /// This plan, not started yet.
    Planned(Plan),
    /// Under way for this VM alone.
    Begun(Arc<PrefetchProgress>),
    /// These ranges are under way or were read, for all VMs over the same base.
    Shared(PageRanges),
}

/// Most pages that are kept, and mapped before the guest runs: 128 MiB. A guest that touched more had worked
/// for long, and its set would cost each later one more than it saves.
const MOST_BEFORE: u64 = (128 << 20) / PAGE;

/// Pages to map before the guest runs.
pub(crate) struct PagesToMap {
    ram: GuestRam,
    set: Arc<WorkingSet>,
    progress: Arc<PrefetchProgress>,
}

impl PagesToMap {
    /// Maps them, in the process and for the guest. A working set is advice: the guest runs without it.
    pub(crate) fn map(self, vcpu: &LentVcpu) {
        let Self { ram, set, progress } = self;
        let written = set.written().iter().try_for_each(|run| copy_in(&ram, run.clone()));
        let mapped = written.and_then(|()| set.others().iter().try_for_each(|run| map_in(&ram, run.clone())));
        progress.finish(if mapped.is_ok() { set.pages() } else { 0 });
        if let Err(error) = mapped {
            log::warn!("{}", report(&error));
            return;
        }
        let mut all = set.page_ranges().iter().flat_map(|run| ram.guest_addresses(run));
        // Many hosts cannot do that.
        if let Err(error) = all.try_for_each(|run| vcpu.pre_fault(run)) {
            log::debug!("memory is not mapped for the guest ahead: {error}");
        }
    }
}

impl Vm {
    /// Begins to read ahead what an earlier restore recorded, if the restore's options say so.
    pub(crate) fn prefetch(&self) {
        let mut ahead = lock(&self.ahead);
        let PrefetchState::Planned(plan) = &*ahead else { return };
        // A working set is advice: the VM runs without it.
        *ahead = self.begin(plan).unwrap_or_else(|error| {
            log::warn!("{}", report(&error));
            PrefetchState::Nothing
        });
    }

    fn begin(&self, Plan { set, over }: &Plan) -> Result<PrefetchState> {
        let (ram, control) = self.machine.on_machine(|machine| {
            let shell = machine.shell();
            (shell.ram.clone(), Arc::clone(&shell.control))
        });
        if let Some(faults) = ram.faults() {
            // Pages under a diff's pages are never read, so they are left out.
            let runs = set.page_ranges_without(over.as_deref());
            return faults.handler().prefetch(&runs).map(|()| PrefetchState::Shared(runs));
        }
        let progress = populate(&ram, set.page_ranges())?;
        let at_end = Arc::clone(&progress);
        control.at_end(move || at_end.stop());
        Ok(PrefetchState::Begun(progress))
    }

    /// Takes over the work of [`Vm::prefetch`] if the set tells which pages the guest will write. Absent for
    /// another set.
    pub(crate) fn take_pages_to_map(&self) -> Option<PagesToMap> {
        let mut ahead = lock(&self.ahead);
        let PrefetchState::Planned(Plan { set, over: None }) = &*ahead else { return None };
        let ram = self.machine.on_machine(|machine| machine.shell().ram.clone());
        if set.written().is_empty() || set.pages() > MOST_BEFORE || ram.faults().is_some() {
            return None;
        }
        let (set, progress) = (Arc::clone(set), PrefetchProgress::of(set.page_ranges()));
        *ahead = PrefetchState::Begun(Arc::clone(&progress));
        Some(PagesToMap { ram, set, progress })
    }

    /// Whether [`Vm::keep_working_set`] would give the snapshot its first working set.
    #[must_use]
    pub fn lacks_working_set(&self) -> bool {
        self.working_set.is_some()
    }

    /// Keeps what the guest has touched since its restore as the working set of the snapshot, which has none.
    /// The page tables tell pages that it wrote from others, so no page has to be filled apart as for a
    /// recording. They also name neighbours of pages that were read. Returns the number of pages,
    /// or nothing if there are too many, of which none are kept: more than 128 MiB.
    ///
    /// # Errors
    /// The VM is not one of a template without a working set, or its memory is not mapped from a file. Or the
    /// file system refuses.
    pub fn keep_working_set(&self) -> Result<Option<u64>> {
        let refused = |problem: &str| Error::config("record", problem);
        let beside = self.working_set.as_ref().ok_or_else(|| {
            refused("only a VM of a template without a working set keeps what its guest has touched")
        })?;
        let ram = self.machine.on_machine(|machine| machine.shell().ram.clone());
        if ram.faults().is_some() {
            return Err(refused("the memory of this VM is not mapped from a file"));
        }
        let [written, read] = touched_pages(&ram)?;
        let set = WorkingSet::of_written(&written, &read);
        let pages = set.pages();
        if pages > MOST_BEFORE {
            return Ok(None);
        }
        beside.keep(set).map(|()| Some(pages))
    }

    /// Ends the recording, if it has not ended, keeps it, and returns its summary.
    ///
    /// # Errors
    /// [`Error::Config`]: the VM is not recorded. Or the VM ended before, or the file system refuses.
    pub fn end_recording(&self) -> Result<RecordingSummary> {
        let recording = self.recording.as_ref().ok_or_else(|| {
            Error::config("record", "this VM is not recorded; restore it with `record` set to record it")
        })?;
        recording.finish()
    }

    /// Whether the VM is recorded, or was up to the event.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.recording.is_some()
    }

    /// Waits for the end of the recording, and returns its summary. Returns nothing if the VM is not
    /// recorded.
    pub fn wait_recorded(&self) -> Option<Result<RecordingSummary>> {
        self.recording.as_ref().map(Recording::outcome)
    }
}
