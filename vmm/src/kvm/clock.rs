//! The clock of a VM, which the guest reads through kvmclock. A restore continues it from its saved time, or
//! adds the time since the snapshot.

use std::time::{Duration, SystemTime};

use kvm_bindings::{KVM_CLOCK_HOST_TSC, KVM_CLOCK_REALTIME};

use super::KvmContext;
use super::vm::VmHandle;
use crate::config::ClockMode;
use crate::error::{Error, Result};
pub use crate::kvm::serde_mirror::ClockState;
use crate::persist::Persist;

/// The clock of a VM.
#[derive(Debug)]
pub struct Clock {
    vm: VmHandle,
    mode: ClockMode,
    /// The time that the restore under way adds.
    skipped: Duration,
}

impl Clock {
    pub(crate) fn new(vm: VmHandle) -> Self {
        Self { vm, mode: ClockMode::default(), skipped: Duration::ZERO }
    }

    /// Chooses how restores treat the time since the snapshot.
    pub(crate) fn set_mode(&mut self, mode: ClockMode) {
        self.mode = mode;
    }

    /// Begins a restore. Returns the time that the clocks skip: kvmclock and the TSCs, since a guest may keep
    /// its time by either. It is zero if the host's time of day went back.
    ///
    /// KVM can add the time itself (KVM_CLOCK_REALTIME of KVM_SET_CLOCK), but to kvmclock alone.
    ///
    /// # Errors
    /// [`Error::Config`] if the clocks are to jump and the snapshot has no time of day.
    pub(crate) fn begin_restore(&mut self, state: &ClockState) -> Result<Duration> {
        self.skipped = match self.mode {
            ClockMode::Continue => Duration::ZERO,
            ClockMode::Realtime if state.flags & KVM_CLOCK_REALTIME == 0 => {
                return Err(Error::config(
                    "clock",
                    "realtime needs the time of day of the snapshot, which its host's kernel (before Linux \
                     5.16) did not tell; use continue",
                ));
            }
            ClockMode::Realtime => since(state.realtime, SystemTime::now()),
        };
        Ok(self.skipped)
    }

    /// Returns how far the restored clock has moved.
    ///
    /// The guest computes the time of a clock from a TSC and a value that KVM writes for each vCPU when that
    /// enters the guest. Linux reads the first vCPU's on all vCPUs, before it is written anew too. The time
    /// would go back if the clock had a smaller distance from the TSC than in the snapshot.
    pub(crate) fn moved(&self, state: &ClockState) -> Result<ClockMoved> {
        let now = self.vm.fd().get_clock().context("KVM_GET_CLOCK")?;
        if state.flags & now.flags & KVM_CLOCK_HOST_TSC == 0 {
            return Ok(ClockMoved { time: self.skipped, host_tscs: None });
        }
        let time = Duration::from_nanos(now.clock.saturating_sub(state.clock).saturating_sub(BEHIND));
        Ok(ClockMoved { time, host_tscs: Some((state.host_tsc, now.host_tsc)) })
    }
}

/// How far a restored clock has moved from its saved value. The TSCs move as far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockMoved {
    /// The time.
    pub time: Duration,
    /// The host's TSC at the saved value, on its host, and at the present one, if KVM tells them.
    pub host_tscs: Option<(u64, u64)>,
}

/// The time by which the TSCs stay behind the clock, for errors of rounding.
const BEHIND: u64 = 1000;

/// The time from `realtime`, in ns since 1970, to `now`.
fn since(realtime: u64, now: SystemTime) -> Duration {
    let then = SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(realtime));
    then.and_then(|then| now.duration_since(then).ok()).unwrap_or_default()
}

impl Persist for Clock {
    type State = ClockState;

    fn save(&self) -> Result<ClockState> {
        let Self { vm, mode: _, skipped: _ } = self;
        Ok(vm.fd().get_clock().context("KVM_GET_CLOCK")?.into())
    }

    /// Sets the clock without its saved flags, later by the skipped time. REALTIME would add the time since
    /// the snapshot again (KVM API, section 4.30), and TSC_STABLE is output only.
    fn restore(&mut self, state: &ClockState) -> Result<()> {
        let skipped = u64::try_from(self.skipped.as_nanos()).unwrap_or(u64::MAX);
        let state = ClockState { flags: 0, clock: state.clock.saturating_add(skipped), ..*state };
        self.vm.fd().set_clock(&state.into()).context("KVM_SET_CLOCK")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_since_the_snapshot_is_never_negative() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let second = 1_000_000_000;
        assert_eq!(since(400 * second, now), Duration::from_secs(600));
        assert_eq!(since(1001 * second, now), Duration::ZERO);
        assert_eq!(since(u64::MAX, now), Duration::ZERO);
    }
}
