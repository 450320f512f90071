//! The VM's clock: what kvmclock in the guest reads. After a restore it goes on from where it stood.

use super::OrRefused;
use super::vm::VmHandle;
use crate::error::Result;
pub use crate::kvm::serde_mirror::Clock as ClockState;
use crate::persist::Persist;

/// The clock of a VM.
#[derive(Debug)]
pub struct Clock {
    vm: VmHandle,
}

impl Clock {
    pub(crate) fn new(vm: VmHandle) -> Self {
        Self { vm }
    }
}

impl Persist for Clock {
    type State = ClockState;

    fn save(&self) -> Result<ClockState> {
        let Self { vm } = self;
        Ok(vm.fd().get_clock().or_refused("KVM_GET_CLOCK")?.into())
    }

    /// TSC_STABLE only reports, and with REALTIME the guest's clock would leap over the time it was not there
    /// (KVM API, section 4.30): without flags guest time goes on.
    fn restore(&mut self, state: &ClockState) -> Result<()> {
        let state = ClockState { flags: 0, ..*state };
        self.vm.fd().set_clock(&state.into()).or_refused("KVM_SET_CLOCK")
    }
}
