//! The i8042 keyboard controller with a keyboard, and its wire to the CPU's reset pin (command 0xFE). ACPI's
//! reset register points here, too. There is no mouse.
//!
//! ```text
//!   port 0x64, command ──> controller ──┐
//!   port 0x60, data ─────> keyboard ────┴─> output ──> port 0x60, with interrupt 1 for each byte
//! ```
//!
//! All commands of a driver are answered at once, because a driver waits up to half a second for an answer.

use std::sync::Arc;

use volt_kernel::acpi_tables::aml;

use super::bus::BusDevice;
use super::lines::InterruptLine;
use super::{BusRange, Device};
use crate::error::{Error, Result};
use crate::persist::Persist;
use crate::run_control::{Control, Ending};

mod controller;
mod keyboard;

use controller::Effect;
pub use controller::KeyboardState;

/// Offset of the command register from the data port.
pub const COMMAND_OFFSET: u64 = 4;
/// Offset of the PIT's gate, a port between the two that is no register of this controller.
const PIT_GATE_OFFSET: u64 = 1;
/// Pulses the reset line.
pub const COMMAND_RESET: u8 = 0xfe;

/// The controller and its keyboard.
#[derive(Debug)]
pub struct I8042 {
    // Glue.
    control: Arc<Control>,
    line: InterruptLine,
    /// Accesses of the guest so far.
    accesses: I8042Accesses,
    // Volatile.
    state: KeyboardState,
}

/// Accesses of the guest to the keyboard controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct I8042Accesses {
    /// Reads of a register.
    pub reads: u64,
    /// Writes to a register.
    pub writes: u64,
    /// Resets that the guest asked for.
    pub resets: u64,
}

impl I8042 {
    pub(crate) fn new(control: Arc<Control>, line: InterruptLine) -> Self {
        Self { control, line, accesses: I8042Accesses::default(), state: KeyboardState::default() }
    }

    /// Accesses of the guest so far.
    pub(crate) fn accesses(&self) -> I8042Accesses {
        self.accesses
    }

    /// Presses and releases Ctrl, Alt and Del. Returns false if no driver listens, or none
    /// has read what was pressed before.
    ///
    /// # Errors
    /// KVM refuses the interrupt.
    pub(crate) fn press_ctrl_alt_del(&mut self) -> Result<bool> {
        let pressed = self.state.is_driven() && self.state.press_ctrl_alt_del();
        if pressed {
            self.interrupt()?;
        }
        Ok(pressed)
    }

    /// Interrupts the guest if it wants that for the next byte.
    fn interrupt(&self) -> Result<()> {
        if self.state.interrupts() { self.line.pulse() } else { Ok(()) }
    }
}

impl BusDevice for I8042 {
    /// A read of the PIT's gate comes here if the machine has no PIT: all bits are set, as on a free bus.
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        self.accesses.reads += 1;
        data.fill(match offset {
            0 => self.state.next_byte(),
            COMMAND_OFFSET => self.state.status(),
            PIT_GATE_OFFSET => 0xff,
            _ => 0,
        });
        if offset == 0 {
            // Fails only if KVM refuses the interrupt, which it does not for an existing line.
            let _ = self.interrupt();
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        self.accesses.writes += 1;
        let effect = match offset {
            0 => self.state.data(data[0]),
            COMMAND_OFFSET => self.state.command(data[0]),
            _ => return,
        };
        if effect == Effect::Reset {
            self.accesses.resets += 1;
            self.control.end(Ok(Ending::Reboot));
        }
        let _ = self.interrupt();
    }
}

impl Device for I8042 {
    /// The keyboard. Only its two ports belong to it.
    fn aml(&self, place: &BusRange) -> Vec<u8> {
        let port = |offset| {
            let port = (place.base + offset) as u16;
            aml::IO::new(port, port, 1, 1)
        };
        volt_kernel::guest_aml(&aml::Device::new(
            "PS2_".into(),
            vec![
                &aml::Name::new("_HID".into(), &aml::EISAName::new("PNP0303")),
                &aml::Name::new(
                    "_CRS".into(),
                    &aml::ResourceTemplate::new(vec![
                        &port(0),
                        &port(COMMAND_OFFSET),
                        // Consumer, edge-triggered, active high, exclusive.
                        &aml::Interrupt::new(true, true, false, false, place.gsi.unwrap_or_default()),
                    ]),
                ),
            ],
        ))
    }
}

impl Persist for I8042 {
    type State = KeyboardState;

    fn save(&self) -> Result<KeyboardState> {
        let Self { control: _, line: _, accesses: _, state } = self;
        Ok(state.clone())
    }

    /// Interrupts again for a byte that waits.
    fn restore(&mut self, state: &KeyboardState) -> Result<()> {
        if state.is_impossible() {
            return Err(Error::config("devices", "the keyboard has more bytes than fit"));
        }
        self.state = state.clone();
        self.interrupt()
    }
}
