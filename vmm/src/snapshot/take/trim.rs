//! Trims a guest before its snapshot: the balloon takes all memory that the guest can spare, and the guest
//! drops its page cache. The snapshot leaves out the balloon's pages. It saves the balloon's former target,
//! so clones and the guest itself take the memory back as they run.
//!
//! ```text
//!   former target ──> raised ──> the guest returns memory ──> snapshot; its pause restores the former target
//! ```

use std::thread;
use std::time::{Duration, Instant};

use crate::devices::virtio::balloon::Statistics;
use crate::devices::virtio_slots::BALLOON;
use crate::error::{Error, Invalid, Result};
use crate::machine::Machine;
use crate::machine::shared::SharedMachine;
use crate::progress::Progress;
use crate::run_control::RunState;
use crate::sync::lock;

/// Memory left to the guest beyond its own need, for its work during the snapshot.
const LEAST_LEFT_MIB: u64 = 16;
const LEFT: u64 = 16;
/// A guest that returned nothing for this long returns no more.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(5);

/// A balloon with a raised target. Dropping it restores the former target.
#[derive(Debug)]
pub(crate) struct BalloonTrim<'a> {
    vm: &'a SharedMachine,
    /// The former target, in MiB.
    before: u64,
}

impl<'a> BalloonTrim<'a> {
    /// Raises the balloon's target to all that the guest can spare, and waits for the guest.
    ///
    /// # Errors
    /// The VM does not run, has no balloon, or no statistics tell what the guest can spare; or
    /// [`Error::Cancelled`].
    pub fn of(vm: &'a SharedMachine, progress: &Progress) -> Result<Self> {
        let state = match vm.state() {
            RunState::Running => None,
            RunState::Paused => Some("is paused"),
            RunState::Ended => Some("has ended"),
        };
        if let Some(state) = state {
            return Err(Error::NotNow { act: "trim the guest", state });
        }
        let balloon = vm.balloon()?;
        let config = vm.config();
        let asked = config.devices.balloon.as_ref().is_some_and(|balloon| balloon.statistics_interval > 0);
        let spare = spare_bytes(asked, balloon.statistics)?;
        let left = LEAST_LEFT_MIB.max(config.memory_mib / LEFT);
        let goal = balloon.actual_mib + (spare >> 20).saturating_sub(left);
        let trimmed = Self { vm, before: balloon.target_mib };
        if goal > balloon.actual_mib {
            vm.set_balloon(goal)?;
            trimmed.wait(goal, progress)?;
        }
        Ok(trimmed)
    }

    /// Waits until the guest returned `goal` MiB, or returns no more.
    fn wait(&self, goal: u64, progress: &Progress) -> Result<()> {
        let (mut most, mut since) = (0, Instant::now());
        while self.vm.state() == RunState::Running && since.elapsed() < PATIENCE {
            progress.check()?;
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

    /// Restores the former target in the pause of the snapshot, so that the snapshot has it.
    ///
    /// # Errors
    /// The balloon refuses the target.
    pub fn undo(&self, machine: &Machine) -> Result<()> {
        let platform = machine.platform();
        if let Some(balloon) = platform.balloon() {
            lock(balloon).set_target(self.before)?;
            platform.configuration_changed(BALLOON);
        }
        Ok(())
    }
}

/// Returns the memory that the guest can spare. `asked` says whether the balloon asks for statistics.
fn spare_bytes(asked: bool, statistics: Option<Statistics>) -> Result<u64> {
    let problem = match statistics {
        Some(Statistics { available_memory: Some(bytes), .. }) => return Ok(bytes),
        Some(_) => "the guest's statistics lack its available memory, which trimming needs".into(),
        None if asked => "the guest has sent no statistics yet, which trimming needs; try again later".into(),
        None => Invalid::NoStatistics,
    };
    Err(Error::config("balloon", problem))
}

impl Drop for BalloonTrim<'_> {
    fn drop(&mut self) {
        if self.vm.balloon().is_ok_and(|balloon| balloon.target_mib != self.before) {
            let _ = self.vm.set_balloon(self.before); // it could be asked for that before
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Cure;

    #[test]
    fn statistics_are_a_cure_only_if_the_balloon_lacks_them() {
        let told = Statistics { available_memory: Some(7), ..Statistics::default() };
        assert_eq!(spare_bytes(true, Some(told)).unwrap(), 7);
        assert_eq!(spare_bytes(false, None).unwrap_err().cures(), [Cure::BalloonStatistics]);
        for (statistics, words) in [(None, "no statistics yet"), (Some(Statistics::default()), "lack")] {
            let error = spare_bytes(true, statistics).unwrap_err();
            assert!(error.to_string().contains(words) && error.cures().is_empty(), "{error}");
        }
    }
}
