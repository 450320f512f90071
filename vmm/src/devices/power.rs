//! ACPI's sleep control and sleep status registers (ACPI 6.5, section 4.8.3.7), the power management of
//! hardware-reduced ACPI, its power button (section 4.8.2.2.2), and the register of a guest whose kernel
//! panics (pvpanic: QEMU's docs/specs/pvpanic).
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

/// Offset of the panic register.
const PANIC_OFFSET: u64 = 2;
/// Bit of the panic register: the guest's kernel panicked, and starts no other kernel for a dump. The
/// register reads as the bits that the machine understands. A guest with a kernel for dumps keeps silent.
const PANICKED: u8 = 1 << 0;

/// The registers, and the button.
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
    /// The sleep registers read as 0: the machine never sleeps, so it never wakes.
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        data.fill(if offset == PANIC_OFFSET { PANICKED } else { 0 });
    }

    /// A panic ends the machine, for a guest may hang afterwards, or reboot as if nothing had happened. Linux
    /// has printed its messages before it writes here.
    fn write(&mut self, offset: u64, data: &[u8]) {
        match offset {
            CONTROL_OFFSET if is_power_off(data[0]) => self.control.end(Ok(Ending::Poweroff)),
            PANIC_OFFSET if data[0] & PANICKED != 0 => self.control.end(Ok(Ending::Panicked)),
            _ => {}
        }
    }
}

impl Device for Power {
    /// The button and its event device, and the panic register. The FADT describes the sleep registers.
    fn aml(&self, place: &BusRange) -> Vec<u8> {
        let button = guest_aml(&aml::Device::new(
            "PWRB".into(),
            vec![&aml::Name::new("_HID".into(), &aml::EISAName::new("PNP0C0C"))],
        ));
        let events = event_device::encode("GEDP", place.gsi.unwrap_or_default(), &["\\_SB_.PWRB"]);
        let port = (place.base + PANIC_OFFSET) as u16;
        let panic = guest_aml(&aml::Device::new(
            "PEVT".into(),
            vec![
                &aml::Name::new("_HID".into(), &"QEMU0001"),
                &aml::Name::new(
                    "_CRS".into(),
                    &aml::ResourceTemplate::new(vec![&aml::IO::new(port, port, 1, 1)]),
                ),
            ],
        ));
        [button, events, panic].concat()
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
