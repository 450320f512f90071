//! ACPI's sleep control and sleep status registers (ACPI 6.5, section 4.8.3.7), the power management of
//! hardware-reduced ACPI, and its power button (section 4.8.2.2.2).
//!
//! ```text
//!   press() ──edge──> Generic Event Device ──Notify──> PNP0C0C: the driver asks init to end
//!                                                             the machine ends by the registers
//! ```

use std::sync::Arc;

use volt_kernel::acpi_tables::aml;
use volt_kernel::guest_aml;
use volt_kernel::power::is_power_off;

use super::bus::BusDevice;
use super::event_device;
use super::lines::InterruptLine;
use super::{BusRange, Device};
use crate::error::Result;
use crate::persist::{NoState, Persist};
use crate::run_control::{Control, Ending};

/// Offset of the sleep control register.
pub const CONTROL_OFFSET: u64 = 0;
/// Offset of the sleep status register.
pub const STATUS_OFFSET: u64 = 1;

/// The two registers, and the button.
#[derive(Debug)]
pub struct Power {
    control: Arc<Control>,
    button: InterruptLine,
}

impl Power {
    pub(crate) fn new(control: Arc<Control>, button: InterruptLine) -> Self {
        Self { control, button }
    }

    /// Presses the button. A guest without a driver for it takes no notice.
    ///
    /// # Errors
    /// KVM refuses the interrupt.
    pub(crate) fn press(&self) -> Result<()> {
        self.button.pulse()
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
    /// The button and its event device. The FADT describes the registers.
    fn aml(&self, place: &BusRange) -> Vec<u8> {
        let button = guest_aml(&aml::Device::new(
            "PWRB".into(),
            vec![&aml::Name::new("_HID".into(), &aml::EISAName::new("PNP0C0C"))],
        ));
        let events = event_device::encode("GEDP", place.gsi.unwrap_or_default(), &["\\_SB_.PWRB"]);
        [button, events].concat()
    }
}

impl Persist for Power {
    type State = NoState;

    fn save(&self) -> Result<NoState> {
        let Self { control: _, button: _ } = self;
        Ok(NoState {})
    }

    fn restore(&mut self, NoState {}: &NoState) -> Result<()> {
        Ok(())
    }
}
