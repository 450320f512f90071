//! The clock of a VM, which the guest reads through kvmclock. A restore continues it from its saved time.

use super::KvmContext;
use super::vm::VmHandle;
use crate::error::Result;
pub use crate::kvm::serde_mirror::ClockState;
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
        Ok(vm.fd().get_clock().context("KVM_GET_CLOCK")?.into())
    }

    /// Sets the clock without its saved flags. REALTIME would make guest time jump by the time since the
    /// snapshot (KVM API, section 4.30), and TSC_STABLE is output only.
    fn restore(&mut self, state: &ClockState) -> Result<()> {
        let state = ClockState { flags: 0, ..*state };
        self.vm.fd().set_clock(&state.into()).context("KVM_SET_CLOCK")
    }
}
