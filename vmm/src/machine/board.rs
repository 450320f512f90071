//! The board of a VM: everything that handles the exits of its vCPUs.

use std::sync::{Arc, Mutex};

use crate::devices::bus::Bus;
use crate::devices::lines::InterruptLines;
use crate::memory::ram::GuestRam;
use crate::run_control::Control;
use crate::sync::lock;

/// The handlers of vCPU exits, shared by all vCPUs.
#[derive(Debug)]
pub(crate) struct Board {
    /// Devices at I/O ports.
    pub ports: Bus,
    /// Devices at guest physical addresses.
    pub mmio: Bus,
    /// Interrupt lines, which receive the end of each interrupt.
    pub lines: InterruptLines,
    /// Guest memory. An MMIO exit inside it means that KVM could not access it.
    pub ram: GuestRam,
    /// Ends the guest.
    pub control: Arc<Control>,
}

/// Holds the board for the vCPU threads. A pool starts the threads before it knows the devices, so the slot
/// is empty until the machine is made. Dropping the shell empties it, because board and control refer to each
/// other.
#[derive(Debug, Default)]
pub(crate) struct BoardSlot(Mutex<Option<Arc<Board>>>);

impl BoardSlot {
    /// Sets the board. Called before a vCPU first runs.
    pub fn put(&self, board: Board) {
        *lock(&self.0) = Some(Arc::new(board));
    }

    /// Returns the board, if the machine is made and not dropped.
    pub fn get(&self) -> Option<Arc<Board>> {
        lock(&self.0).clone()
    }

    /// Removes the board. A running vCPU keeps it until it is parked.
    pub fn clear(&self) {
        *lock(&self.0) = None;
    }
}
