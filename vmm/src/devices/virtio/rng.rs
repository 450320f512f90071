//! Randomness from the host (virtio 1.2, section 5.4). getrandom(2) fills each buffer, within a rate limit.

use std::time::Instant;

use rustix::rand::{GetRandomFlags, getrandom};

use super::limiter::RateLimiter;
use super::{ChainOutcome, DeviceFailed, DeviceIo, DeviceKind, NextTurn, VirtioDevice, WakeReason};
use crate::config::devices::RateLimit;
use crate::counters::device::{DeviceOperations, OperationKind};
use crate::error::Result;
use crate::persist::{NoState, Persist};

/// Most bytes for one buffer. The driver may ask again for the rest.
const MOST: usize = 4096;
/// The operation as the counters name it.
const OPERATIONS: &[OperationKind] = &[OperationKind::new("requests")];

/// The device.
#[derive(Debug)]
pub struct Rng {
    limiter: RateLimiter,
}

impl Rng {
    /// Makes a device with this limit of bytes and buffers.
    #[must_use]
    pub fn new(limit: &RateLimit) -> Self {
        Self { limiter: RateLimiter::new(limit) }
    }
}

impl Default for Rng {
    /// A device without a limit.
    fn default() -> Self {
        Self::new(&RateLimit::default())
    }
}

impl VirtioDevice for Rng {
    fn kind(&self) -> DeviceKind {
        DeviceKind { id: 4, queues: &[64] }
    }

    fn operations(&self) -> DeviceOperations {
        DeviceOperations { operations: OPERATIONS, queues: None }
    }

    fn work(&mut self, _: WakeReason, io: &mut DeviceIo<'_>) -> std::result::Result<NextTurn, DeviceFailed> {
        let most = io.queues[0].size().into();
        let next = io.each_chain(0, most, |mut chain| {
            let mut random = [0; MOST];
            let wanted = &mut random[..chain.writable.len().min(MOST)];
            if let Err(at) = self.limiter.admit(Instant::now(), wanted.len() as u64) {
                return Ok(ChainOutcome::Kept(NextTurn::At(at)));
            }
            // The kernel's generator was seeded before any program could start a VM. The call returns all
            // bytes, or a part if it is interrupted.
            let got = getrandom(&mut *wanted, GetRandomFlags::empty()).unwrap_or(0);
            Ok(ChainOutcome::Done(chain.writable.write(&wanted[..got])))
        })?;
        io.counters.limited(0, self.limiter.waits());
        io.interrupt_if_wanted()?;
        Ok(next)
    }
}

impl Persist for Rng {
    type State = NoState;

    fn save(&self) -> Result<NoState> {
        let Self { limiter: _ } = self;
        Ok(NoState {})
    }

    fn restore(&mut self, _: &NoState) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::testing::{Driver, Part};
    use super::*;
    use crate::config::devices::Bucket;

    #[test]
    fn buffers_beyond_the_limit_wait() {
        let second = Bucket { size: 64, refill_time: 1000, one_time_burst: 0 };
        let mut rng = Rng::new(&RateLimit { bandwidth: Some(second), ops: None });
        let now = Instant::now();
        assert_eq!(rng.limiter.admit(now, 64), Ok(()));
        let at = rng.limiter.admit(now, 32).unwrap_err();
        assert_eq!(at - now, Duration::from_millis(500));
        let mut driver = Driver::new(rng);
        assert_eq!(driver.ask(0, &[Part::In(32)]).len, 32);
        assert!(now.elapsed() >= at - now, "it waited for {:?}", now.elapsed());
    }

    #[test]
    fn buffers_are_filled_with_new_bytes() {
        let mut driver = Driver::new(Rng::default());
        let first = driver.ask(0, &[Part::In(64), Part::In(32)]);
        let second = driver.ask(0, &[Part::In(96)]);
        assert_eq!((first.len, second.len), (96, 96));
        assert!(first.written != second.written && first.written != [0; 96], "{first:?}");
    }

    #[test]
    fn partly_filled_buffer_reports_its_length() {
        let mut driver = Driver::new(Rng::default());
        let used = driver.ask(0, &[Part::In(2 * MOST)]);
        assert_eq!(used.len as usize, MOST);
        assert!(used.written[MOST..].iter().all(|byte| *byte == 0));
        assert_eq!(driver.ask(0, &[Part::Out(b"not for it to write")]).len, 0);
    }

    #[test]
    fn device_resumes_in_another_process() {
        let mut driver = Driver::new(Rng::default());
        driver.ask(0, &[Part::In(8)]);
        driver.move_to(Rng::default());
        assert_eq!(driver.ask(0, &[Part::In(8)]).len, 8);
    }
}
