//! An IOAPIC for a machine without one in the kernel. It turns edges on interrupt lines into messages to the
//! local APICs.
//!
//! The model is an 82093AA with the EOI register of its successors (version 0x20). KVM's local APICs let a
//! guest suppress the broadcast of ends of interrupts if the IOAPIC is not KVM's. The EOI register is then
//! the guest's only way to report an end.

mod registers;

#[cfg(test)]
mod tests;

use registers::IoApicRegisters;

use log::Level;

use super::bus::BusDevice;
use super::log_limit::LogLimit;
use super::{BusRange, Device};
use crate::error::{Result, report};
use crate::kvm::msi::MsiMessage;
use crate::kvm::vm::VmHandle;
use crate::persist::Persist;

pub use registers::IoApicState;

/// Length of its range of guest physical addresses.
pub const LEN: u64 = 0x100;

/// The IOAPIC.
#[derive(Debug)]
pub struct IoApic {
    // Glue.
    vm: VmHandle,
    /// Interrupts whose ends KVM reports.
    watched: Vec<(u32, MsiMessage)>,
    log: LogLimit,
    // Volatile.
    registers: IoApicRegisters,
}

impl IoApic {
    pub(super) fn new(vm: VmHandle) -> Self {
        Self { vm, watched: Vec::new(), log: LogLimit::new(), registers: IoApicRegisters::default() }
    }

    /// Sends an edge on a line. As on the chip and in KVM's model, an edge is lost if the pin is masked, or
    /// still waits for the end of the interrupt before.
    ///
    /// # Errors
    /// KVM refuses the message.
    pub(super) fn pulse(&mut self, gsi: u32) -> Result<()> {
        let Some(message) = self.registers.message(gsi) else { return Ok(()) };
        if self.vm.send(message)? {
            self.registers.taken(gsi);
        }
        Ok(())
    }

    /// Handles the end of an interrupt with this vector on a vCPU.
    pub(super) fn end_of_interrupt(&mut self, vector: u8) {
        self.registers.end_of_interrupt(vector);
    }

    /// Makes KVM report the ends of interrupts on level-triggered pins. No device of ours has one, so this
    /// mostly does nothing; otherwise it takes a grace period.
    fn watch_ends(&mut self) -> Result<()> {
        let wanted = self.registers.level_triggered();
        if wanted != self.watched {
            self.vm.watch_ends(&wanted)?;
            self.watched = wanted;
        }
        Ok(())
    }
}

impl BusDevice for IoApic {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        let value = self.registers.read(offset).to_le_bytes();
        data.fill(0);
        data.iter_mut().zip(value).for_each(|(to, from)| *to = from);
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let mut value = [0; 4];
        value.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
        self.registers.write(offset, u32::from_le_bytes(value));
        if let Err(error) = self.watch_ends() {
            self.log.log(Level::Error, format_args!("IOAPIC: {}", report(&error)));
        }
    }
}

impl Device for IoApic {
    /// Empty: the MADT describes it.
    fn aml(&self, _place: &BusRange) -> Vec<u8> {
        Vec::new()
    }
}

impl Persist for IoApic {
    type State = IoApicState;

    fn save(&self) -> Result<IoApicState> {
        let Self { vm: _, watched: _, log: _, registers } = self;
        registers.save()
    }

    fn restore(&mut self, state: &IoApicState) -> Result<()> {
        self.registers.restore(state)?;
        self.watch_ends()
    }
}
