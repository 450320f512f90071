//! Randomness from the host (virtio 1.2, section 5.4). getrandom(2) fills each buffer.

use rustix::rand::{GetRandomFlags, getrandom};

use super::{DeviceFailed, DeviceIo, DeviceKind, NextTurn, VirtioDevice, WakeReason};
use crate::error::Result;
use crate::persist::{NoState, Persist};

/// Most bytes for one buffer. The driver may ask again for the rest.
const MOST: usize = 4096;

/// The device.
#[derive(Debug, Default)]
pub struct Rng;

impl VirtioDevice for Rng {
    fn kind(&self) -> DeviceKind {
        DeviceKind { id: 4, queues: &[64] }
    }

    fn work(&mut self, _: WakeReason, io: &mut DeviceIo<'_>) -> std::result::Result<NextTurn, DeviceFailed> {
        io.serve(0, |mut chain| {
            let mut random = [0; MOST];
            let wanted = &mut random[..chain.writable.len().min(MOST)];
            // The kernel's generator was seeded before any program could start a VM. The call returns all
            // bytes, or a part if it is interrupted.
            let got = getrandom(&mut *wanted, GetRandomFlags::empty()).unwrap_or(0);
            Ok(chain.writable.write(&wanted[..got]))
        })
    }
}

impl Persist for Rng {
    type State = NoState;

    fn save(&self) -> Result<NoState> {
        let Self = self;
        Ok(NoState {})
    }

    fn restore(&mut self, _: &NoState) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Driver, Part};
    use super::*;

    #[test]
    fn buffers_are_filled_with_new_bytes() {
        let mut driver = Driver::new(Rng);
        let first = driver.ask(0, &[Part::In(64), Part::In(32)]);
        let second = driver.ask(0, &[Part::In(96)]);
        assert_eq!((first.len, second.len), (96, 96));
        assert!(first.written != second.written && first.written != [0; 96], "{first:?}");
    }

    #[test]
    fn partly_filled_buffer_reports_its_length() {
        let mut driver = Driver::new(Rng);
        let used = driver.ask(0, &[Part::In(2 * MOST)]);
        assert_eq!(used.len as usize, MOST);
        assert!(used.written[MOST..].iter().all(|byte| *byte == 0));
        assert_eq!(driver.ask(0, &[Part::Out(b"not for it to write")]).len, 0);
    }

    #[test]
    fn device_resumes_in_another_process() {
        let mut driver = Driver::new(Rng);
        driver.ask(0, &[Part::In(8)]);
        driver.move_to(Rng);
        assert_eq!(driver.ask(0, &[Part::In(8)]).len, 8);
    }
}
