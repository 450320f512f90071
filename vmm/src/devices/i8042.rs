//! The keyboard controller, of which only the wire to the CPU's reset pin is left: command 0xFE at port 0x64. ACPI's
//! reset register points here too.

use std::sync::Arc;

use super::bus::BusDevice;
use super::{BusRange, Device};
use crate::error::Result;
use crate::persist::{NoState, Persist};
use crate::run_control::{Control, Ending};

/// Offset of the command register from the data port.
pub const COMMAND_OFFSET: u64 = 4;
/// Offset of the port in between that is no register of this controller.
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
    /// Status 0: input buffer empty, nothing to read. A guest that waits for either sees at once that it may go on. The same
    /// for one that waits at the gate of the PIT, which comes here where there is none: all bits are set, as on a free bus.
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
    /// None: a keyboard that is announced is probed for, for half a second.
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
