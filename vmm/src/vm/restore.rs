//! Restores VMs from snapshots.

use crate::error::Result;
use crate::run_control::RunState;
use crate::snapshot::restore::open::Restored;
use crate::snapshot::{RestoreOptions, Snapshot};
use crate::timing::step_done;
use crate::vm::Vm;

impl Snapshot {
    /// Restores a VM, running, its serial output discarded.
    ///
    /// # Errors
    /// As [`Snapshot::restore_with`].
    pub fn restore(&self) -> Result<Vm> {
        self.restore_with(RestoreOptions::default())
    }

    /// Restores a VM.
    ///
    /// # Errors
    /// The host refuses memory, a VM, or a part of the state.
    pub fn restore_with(&self, options: RestoreOptions) -> Result<Vm> {
        let (resume, lent_thread) = (options.resume, options.lent_thread);
        let Restored { running, history, ahead, recording } = self.restored(options)?;
        let vm = Vm::of(running, history).with_working_set(ahead, recording);
        if resume {
            // A device may have touched memory that cannot be had before any vCPU runs. The VM's end says
            // why.
            vm.resume().or_else(|error| if vm.state() == RunState::Ended { Ok(()) } else { Err(error) })?;
            step_done("resume");
        }
        // The guest of a lent thread does not run yet: it goes first.
        if !lent_thread {
            vm.prefetch();
            vm.hold_files();
        }
        Ok(vm)
    }
}
