//! The note about a guest and its agent, which the library keeps in a snapshot, and the state of the workload
//! of this process's VM.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use volt_vmm::Snapshot;

use super::home;
use crate::run_dir::record::MainOfImage;

/// A note about a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct GuestNote {
    /// Whether the agent has frozen the workload.
    pub(crate) quiet: bool,
    /// The main process, if the VM runs an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) main: Option<MainOfImage>,
}

/// The workload of this process's VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Workload {
    /// It runs, as far as the host knows.
    #[default]
    Runs,
    /// It is frozen since a restore or rewind, and the guest has to be woken first.
    Asleep,
    /// It is frozen since a capture.
    Frozen,
}

/// The note of the snapshot that the VM was restored from, and the workload since.
static STATE: Mutex<(Option<GuestNote>, Workload)> = Mutex::new((None, Workload::Runs));

fn state() -> MutexGuard<'static, (Option<GuestNote>, Workload)> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GuestNote {
    /// Reads the note of a snapshot. One that another program wrote says nothing.
    pub(crate) fn in_snapshot(snapshot: &Snapshot) -> Self {
        let note = snapshot.metadata().note.clone();
        note.and_then(|note| serde_json::from_value(note).ok()).unwrap_or_default()
    }

    /// Describes this process's VM, to capture it now.
    pub(crate) fn of_this_vm(quiet: bool) -> Self {
        let (restored, workload) = state().clone();
        let main = home::get().and_then(|home| home.main_of_image().cloned());
        let main = main.or(restored.and_then(|note| note.main));
        Self { quiet: quiet || workload != Workload::Runs, main }
    }

    /// The note for a snapshot. Absent if there is nothing to say.
    pub(crate) fn value(self) -> Option<serde_json::Value> {
        let says_something = self != Self::default();
        says_something.then(|| serde_json::to_value(self).expect("it has no keys but text"))
    }

    /// Takes it as that of this process's VM, which was restored.
    pub(crate) fn install(self) {
        let workload = if self.quiet { Workload::Asleep } else { Workload::Runs };
        *state() = (Some(self), workload);
    }
}

/// The workload of this process's VM.
pub(crate) fn workload() -> Workload {
    state().1
}

/// Notes a change of the workload.
pub(crate) fn set_workload(workload: Workload) {
    state().1 = workload;
}

/// Notes that the VM is as it was at its restore.
pub(crate) fn rewound() {
    let mut state = state();
    let was_quiet = state.0.as_ref().is_some_and(|note| note.quiet);
    state.1 = if was_quiet { Workload::Asleep } else { Workload::Runs };
}
