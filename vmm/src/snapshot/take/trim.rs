//! Trimming a guest before it is snapshotted: the balloon takes all that the guest can spare, its page cache goes, and what the balloon
//! has is not saved. In the snapshot the balloon is asked for what it was asked for before, so that clones and the guest itself take
//! the memory back as they go on.
//!
//! ```text
//!   target as it was ──> raised ──> the guest gives, as long as it does ──> snapshot; in its pause the target is as it was
//! ```

use std::thread;
use std::time::{Duration, Instant};

use crate::devices::virtio_slots::BALLOON;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::machine::running::Running;
use crate::run_control::RunState;
use crate::sync::lock;

/// What is left to the guest, beside what it cannot spare: for whatever it does meanwhile.
const LEAST_LEFT_MIB: u64 = 16;
const LEFT: u64 = 16;
/// A guest that has given nothing for so long gives no more.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(5);

/// A balloon that was asked for more. Dropped, it is asked for what it was asked for before.
#[derive(Debug)]
pub(crate) struct BalloonTrim<'a> {
    vm: &'a Running,
    /// MiB.
    before: u64,
}

impl<'a> BalloonTrim<'a> {
    /// Has the balloon take what the guest can spare, and waits for that.
    ///
    /// # Errors
    /// The VM does not run, has no balloon, or one without statistics: nobody knows what the guest can spare.
    pub fn of(vm: &'a Running) -> Result<Self> {
        let state = match vm.state() {
            RunState::Running => None,
            RunState::Paused => Some("is paused"),
            RunState::Ended => Some("has ended"),
        };
        if let Some(state) = state {
            return Err(Error::NotNow { act: "trim the guest", state });
        }
        let balloon = vm.balloon()?;
        let spare = balloon.statistics.and_then(|said| said.available_memory).ok_or_else(|| {
            let problem =
                "to trim it takes statistics, which say what the guest can spare (--balloon statistics=1)";
            Error::config("balloon", problem)
        })?;
        let left = LEAST_LEFT_MIB.max(vm.config().memory_mib / LEFT);
        let goal = balloon.actual_mib + (spare >> 20).saturating_sub(left);
        let trimmed = Self { vm, before: balloon.target_mib };
        if goal > balloon.actual_mib {
            vm.set_balloon(goal)?;
            trimmed.wait(goal)?;
        }
        Ok(trimmed)
    }

    /// Until the guest has given so much, or gives no more.
    fn wait(&self, goal: u64) -> Result<()> {
        let (mut most, mut since) = (0, Instant::now());
        while self.vm.state() == RunState::Running && since.elapsed() < PATIENCE {
            let actual = self.vm.balloon()?.actual_mib;
            if actual >= goal {
                break;
            }
            if actual > most {
                (most, since) = (actual, Instant::now());
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// In the pause of a snapshot: what is saved has the target that there was before.
    ///
    /// # Errors
    /// It cannot be asked for.
    pub fn undo(&self, machine: &Machine) -> Result<()> {
        let platform = machine.platform();
        if let Some(balloon) = platform.balloon() {
            lock(balloon).set_target(self.before)?;
            platform.configuration_changed(BALLOON);
        }
        Ok(())
    }
}

impl Drop for BalloonTrim<'_> {
    fn drop(&mut self) {
        if self.vm.balloon().is_ok_and(|balloon| balloon.target_mib != self.before) {
            let _ = self.vm.set_balloon(self.before); // it could be asked for that before
        }
    }
}
