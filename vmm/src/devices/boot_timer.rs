//! A device that logs the time of a boot. The guest writes a byte to it when it has booted.
//!
//! Address, byte and log line are Firecracker's, whose guests have programs for it.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::bus::BusDevice;
use super::{BusRange, Device};
use crate::error::Result;
use crate::persist::{NoState, Persist};

/// The byte of a guest that has booted.
const BOOTED: u8 = 123;

/// The device.
#[derive(Debug)]
pub struct BootTimer {
    /// Time and processor time at the start; absent once a boot is logged, and in a restored VM.
    start: Option<(Instant, Duration)>,
}

impl BootTimer {
    /// Starts the time.
    pub(crate) fn start() -> Self {
        Self { start: Some((Instant::now(), processor_time())) }
    }
}

/// The time that this process has spent on processors.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// The log line.
fn line(took: Duration, processors: Duration) -> String {
    let (took, processors) = (took.as_micros(), processors.as_micros());
    let (took_ms, processors_ms) = (took / 1000, processors / 1000);
    format!("Guest-boot-time = {took:>6} us {took_ms} ms, {processors:>6} CPU us {processors_ms} CPU ms")
}

impl BusDevice for BootTimer {
    fn read(&mut self, _offset: u64, data: &mut [u8]) {
        data.fill(0);
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if (offset, data) == (0, &[BOOTED][..])
            && let Some((start, processors)) = self.start.take()
        {
            log::info!("{}", line(start.elapsed(), processor_time().saturating_sub(processors)));
        }
    }
}

impl Device for BootTimer {
    /// Empty: programs know the address.
    fn aml(&self, _place: &BusRange) -> Vec<u8> {
        Vec::new()
    }
}

impl Persist for BootTimer {
    type State = NoState;

    fn save(&self) -> Result<NoState> {
        let Self { start: _ } = self;
        Ok(NoState {})
    }

    /// A restored VM has booted before.
    fn restore(&mut self, NoState {}: &NoState) -> Result<()> {
        self.start = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_firecrackers_layout() {
        let found = line(Duration::from_micros(61_234), Duration::from_micros(999));
        assert_eq!(found, "Guest-boot-time =  61234 us 61 ms,    999 CPU us 0 CPU ms");
    }

    #[test]
    fn only_the_first_byte_of_a_booted_guest_counts() {
        let mut timer = BootTimer::start();
        for (offset, data) in [(0, &[BOOTED - 1][..]), (1, &[BOOTED]), (0, &[BOOTED, 0])] {
            timer.write(offset, data);
            assert!(timer.start.is_some(), "{data:?} at {offset}");
        }
        timer.write(0, &[BOOTED]);
        assert!(timer.start.is_none());
        let mut restored = BootTimer::start();
        restored.restore(&NoState {}).unwrap();
        assert!(restored.start.is_none());
    }
}
