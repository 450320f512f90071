//! Working sets of a VM: recording one, and reading one ahead.

use std::sync::Arc;

use crate::error::{Error, Result, report};
use crate::memory::lazy::prefetch::{PageRanges, PrefetchProgress};
use crate::memory::prefault::populate;
use crate::snapshot::RecordingSummary;
use crate::snapshot::format::working_set::Plan;
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
