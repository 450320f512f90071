//! The board of a VM: everything that answers a vCPU's exits. Every vCPU runs on it.

use std::sync::{Arc, Mutex};

use crate::devices::bus::Bus;
use crate::devices::lines::InterruptLines;
use crate::memory::ram::GuestRam;
use crate::run_control::Control;
use crate::sync::lock;

/// See the module.
#[derive(Debug)]
pub(crate) struct Board {
    /// Devices at ports.
    pub ports: Bus,
    /// Devices at guest physical addresses.
    pub mmio: Bus,
    /// Interrupt lines, which are told of the end of an interrupt.
    pub lines: InterruptLines,
    /// Memory slots, from which no access may come out of `KVM_RUN`.
    pub ram: GuestRam,
    /// Ends the guest.
    pub control: Arc<Control>,
}

/// Holds the board for the vCPU threads. A pool starts threads before it knows the devices, so the slot is empty
/// until the machine is made. Dropping the shell empties it: board and control refer to each other.
#[derive(Debug, Default)]
pub(crate) struct BoardSlot(Mutex<Option<Arc<Board>>>);

impl BoardSlot {
    /// Puts the board in, before the first turn of a vCPU.
    pub fn put(&self, board: Board) {
        *lock(&self.0) = Some(Arc::new(board));
    }

    /// The board, if the machine is made and not dropped.
    pub fn get(&self) -> Option<Arc<Board>> {
        lock(&self.0).clone()
    }

    /// Takes the board out. A vCPU in a turn keeps it until the turn ends.
    pub fn clear(&self) {
        *lock(&self.0) = None;
    }
}
