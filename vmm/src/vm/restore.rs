//! Restores VMs from snapshots.

use crate::error::Result;
use crate::machine::shell::FirstVcpu;
use crate::run_control::RunState;
use crate::snapshot::restore::open::Restored;
use crate::snapshot::{RestoreOptions, Snapshot};
use crate::timing::{PhaseClock, step_done};
use crate::vm::Vm;
use crate::vm::lent::LentVm;
use crate::vm::provisional::ProvisionalVm;

impl Snapshot {
    /// Restores a VM with default options: running, its serial output discarded.
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
        self.restore_provisionally(options).map(ProvisionalVm::keep)
    }

    /// Restores a VM as a part of an act that may still fail, such as a fork into several processes.
    /// [`ProvisionalVm::keep`] keeps the layer files that the restore created.
    ///
    /// # Errors
    /// As [`Snapshot::restore_with`].
    pub fn restore_provisionally(&self, options: RestoreOptions) -> Result<ProvisionalVm> {
        let restored = self.assemble(options, FirstVcpu::OwnThread)?;
        restored.vm().prefetch();
        restored.vm().hold_files();
        Ok(restored)
    }

    /// Restores a VM whose first vCPU will run on the calling thread, in [`LentVm::run`]. This saves the
    /// start of a thread.
    ///
    /// # Errors
    /// As [`Snapshot::restore_with`].
    pub fn restore_lent(&self, options: RestoreOptions) -> Result<LentVm> {
        self.assemble(options, FirstVcpu::LentThread).map(|restored| restored.keep().into())
    }

    fn assemble(&self, options: RestoreOptions, first: FirstVcpu) -> Result<ProvisionalVm> {
        let resume = options.resume;
        let Restored { machine, history, ahead, recording, working_set, layers, mut phases } =
            self.restored(options, first)?;
        let mut vm = Vm::of(machine, history).with_working_set(ahead, recording);
        vm.working_set = working_set;
        if first == FirstVcpu::OwnThread {
            let mut clock = PhaseClock::start();
            vm.map_working_set();
            phases.ahead = clock.phase_done();
        }
        if resume {
            let mut clock = PhaseClock::start();
            // A device may touch unavailable memory before a vCPU runs. The VM's end tells the cause.
            vm.resume().or_else(|error| if vm.state() == RunState::Ended { Ok(()) } else { Err(error) })?;
            step_done("resume");
            phases.resume = clock.phase_done();
        }
        vm.phases = Some(phases);
        Ok(ProvisionalVm::new(vm, layers))
    }
}
