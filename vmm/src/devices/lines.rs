//! Interrupt lines take a device's edge to the guest, by KVM's IOAPIC or by ours.
//!
//! ```text
//!                 Kernel: KVM_IRQ_LINE ──> KVM's IOAPIC and PICs ─┐
//! Line::pulse() ──┤                                               ├──> local APIC
//!                 Split:  our IoApic ──────────> KVM_SIGNAL_MSI ──┘
//! ```

use std::sync::{Arc, Mutex};

use vmm_sys_util::eventfd::EventFd;

use super::ioapic::IoApic;
use crate::config::IrqchipKind;
use crate::error::Result;
use crate::kvm::vm::VmHandle;
use crate::sync::lock;

/// All lines of a machine.
#[derive(Clone, Debug)]
pub enum InterruptLines {
    /// Lines of KVM's interrupt controllers.
    Kernel(VmHandle),
    /// Lines of our IOAPIC.
    Split(Arc<Mutex<IoApic>>),
}

/// One line, by the number that the guest uses.
#[derive(Clone, Debug)]
pub struct InterruptLine {
    lines: InterruptLines,
    gsi: u32,
}

impl InterruptLines {
    pub(super) fn of(vm: &VmHandle, irqchip: IrqchipKind) -> Self {
        match irqchip {
            IrqchipKind::Kernel => Self::Kernel(vm.clone()),
            IrqchipKind::Split => Self::Split(Arc::new(Mutex::new(IoApic::new(vm.clone())))),
        }
    }

    pub(super) fn line(&self, gsi: u32) -> InterruptLine {
        InterruptLine { lines: self.clone(), gsi }
    }

    /// Handles the end of an interrupt on a vCPU, which KVM reports for an IOAPIC in user space.
    pub(crate) fn end_of_interrupt(&self, vector: u8) {
        if let Self::Split(ioapic) = self {
            lock(ioapic).end_of_interrupt(vector);
        }
    }
}

impl InterruptLine {
    /// Sends an edge.
    ///
    /// # Errors
    /// KVM refuses.
    pub(super) fn pulse(&self) -> Result<()> {
        match &self.lines {
            InterruptLines::Kernel(vm) => vm.pulse(self.gsi),
            InterruptLines::Split(ioapic) => lock(ioapic).pulse(self.gsi),
        }
    }

    /// Makes KVM send an edge after each write to the eventfd: a second way, for when
    /// [`InterruptLine::pulse`] fails. Our IOAPIC has no second way. KVM would need a route that follows each
    /// change of the pin, and each change of a route waits for a grace period.
    ///
    /// # Errors
    /// KVM refuses.
    pub(super) fn connect(&self, eventfd: &EventFd) -> Result<()> {
        match &self.lines {
            InterruptLines::Kernel(vm) => vm.connect_interrupt(eventfd, self.gsi),
            InterruptLines::Split(_) => Ok(()),
        }
    }
}
