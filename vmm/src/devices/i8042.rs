//! The keyboard controller, reduced to its wire to the CPU's reset pin: command 0xFE at port 0x64. ACPI's
//! reset register points here, too.

use std::sync::Arc;

use super::bus::BusDevice;
use super::{BusRange, Device};
use crate::error::Result;
use crate::persist::{NoState, Persist};
use crate::run_control::{Control, Ending};

/// Offset of the command register from the data port.
pub const COMMAND_OFFSET: u64 = 4;
/// Offset of the PIT's gate, a port between the two that is no register of this controller.
const PIT_GATE_OFFSET: u64 = 1;
/// Pulses the reset line.
pub const COMMAND_RESET: u8 = 0xfe;

/// The reset wire.
#[derive(Debug)]
pub struct I8042 {
    control: Arc<Control>,
}

impl I8042 {
    pub(crate) fn new(control: Arc<Control>) -> Self {
        Self { control }
    }
}

impl BusDevice for I8042 {
    /// Status 0 means that the input buffer is empty and there is nothing to read, so a guest that polls
    /// continues at once. A read of the PIT's gate comes here if the machine has no PIT: all bits are set, as
    /// on a free bus.
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        data.fill(if offset == PIT_GATE_OFFSET { 0xff } else { 0 });
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if offset == COMMAND_OFFSET && data[0] == COMMAND_RESET {
            self.control.end(Ok(Ending::Reboot));
        }
    }
}

impl Device for I8042 {
    /// Empty: a guest probes an announced keyboard for half a second.
    fn aml(&self, _place: &BusRange) -> Vec<u8> {
        Vec::new()
    }
}

impl Persist for I8042 {
    type State = NoState;

    fn save(&self) -> Result<NoState> {
        let Self { control: _ } = self;
        Ok(NoState {})
    }

    fn restore(&mut self, NoState {}: &NoState) -> Result<()> {
        Ok(())
    }
}
