//! What a VM touches first: recorded, or read ahead.

use std::sync::Arc;

use crate::error::{Error, Result, report};
use crate::memory::lazy::prefetch::{Progress, Runs};
use crate::memory::prefault::populate;
use crate::snapshot::RecordingSummary;
use crate::snapshot::format::working_set::Plan;
use crate::snapshot::restore::record::Recording;
use crate::sync::lock;
use crate::vm::Vm;

/// What is read ahead of a guest.
#[derive(Debug)]
pub(crate) enum PrefetchState {
    /// Nothing.
    Nothing,
    /// This, once somebody says so.
    Planned(Plan),
    /// It is under way for this VM alone.
    Begun(Arc<Progress>),
    /// This list is under way, or was before, for all VMs over the same base that name it.
    Shared(Runs),
}

impl Vm {
    /// Begins to read ahead what an earlier restore recorded, if the restore's options say so.
    pub(crate) fn prefetch(&self) {
        let mut ahead = lock(&self.ahead);
        let PrefetchState::Planned(plan) = &*ahead else { return };
        // It is advice, and a VM runs without.
        *ahead = self.begin(plan).unwrap_or_else(|error| {
            log::warn!("{}", report(&error));
            PrefetchState::Nothing
        });
    }

    fn begin(&self, Plan { set, over }: &Plan) -> Result<PrefetchState> {
        let (ram, control) = self.running.on_machine(|machine| {
            let shell = machine.shell();
            (shell.ram.clone(), Arc::clone(&shell.control))
        });
        if let Some(faults) = ram.faults() {
            // The pages of a diff are there, and what lies under them nobody will touch.
            let runs = set.runs_without(over.as_deref());
            return faults.paging().prefetch(&runs).map(|()| PrefetchState::Shared(runs));
        }
        let progress = populate(&ram, set.runs())?;
        let at_end = Arc::clone(&progress);
        control.at_end(move || at_end.stop());
        Ok(PrefetchState::Begun(progress))
    }

    /// Ends the recording of what it touches, if that has not ended by itself, keeps it, and says what it is.
    ///
    /// # Errors
    /// [`Error::Config`]: nothing is recorded of this VM. Or it ended before, or the file system refuses.
    pub fn end_recording(&self) -> Result<RecordingSummary> {
        let recording = self.recording.as_ref().ok_or_else(|| {
            Error::config("record", "nothing is recorded of this VM: that is said when it is restored")
        })?;
        recording.finish()
    }

    /// Whether what it touches is recorded, or was until the marker.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.recording.is_some()
    }

    /// Waits until a recording has ended by itself or was ended, and says what is kept of it. None where nothing is recorded.
    pub fn wait_recorded(&self) -> Option<Result<RecordingSummary>> {
        self.recording.as_ref().map(Recording::outcome)
    }
}
