//! ACPI's sleep control and sleep status registers (ACPI 6.5, section 4.8.3.7), the power management of
//! hardware-reduced ACPI. Here they only switch the machine off.

use std::sync::Arc;

use volt_kernel::power::is_power_off;

use super::bus::BusDevice;
use super::{BusRange, Device};
use crate::error::Result;
use crate::persist::{NoState, Persist};
use crate::run_control::{Control, Ending};

/// Offset of the sleep control register.
pub const CONTROL_OFFSET: u64 = 0;
/// Offset of the sleep status register.
pub const STATUS_OFFSET: u64 = 1;

/// The two registers.
#[derive(Debug)]
pub struct Power {
    control: Arc<Control>,
}

impl Power {
    pub(crate) fn new(control: Arc<Control>) -> Self {
        Self { control }
    }
}

impl BusDevice for Power {
    /// Both registers read as 0: the machine never sleeps, so it never wakes.
    fn read(&mut self, _offset: u64, data: &mut [u8]) {
        data.fill(0);
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if offset == CONTROL_OFFSET && is_power_off(data[0]) {
            self.control.end(Ok(Ending::Poweroff));
        }
    }
}

impl Device for Power {
    /// Empty: the FADT describes the registers.
    fn aml(&self, _place: &BusRange) -> Vec<u8> {
        Vec::new()
    }
}

impl Persist for Power {
    type State = NoState;

    fn save(&self) -> Result<NoState> {
        let Self { control: _ } = self;
        Ok(NoState {})
    }

    fn restore(&mut self, NoState {}: &NoState) -> Result<()> {
        Ok(())
    }
}
