//! Interrupt messages to the local APICs, for VMs whose IOAPIC is outside the kernel.

use kvm_bindings::{KVM_IRQ_ROUTING_MSI, KvmIrqRouting, kvm_irq_routing_entry, kvm_irq_routing_msi, kvm_msi};

use super::vm::VmHandle;
use super::{KvmContext, kvm_error};
use crate::error::Result;

/// A message-signalled interrupt (Intel SDM volume 3, section 11.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsiMessage {
    /// The destination local APICs.
    pub address: u32,
    /// Vector, delivery mode and trigger mode.
    pub data: u32,
}

impl VmHandle {
    /// Sends a message. Returns whether a local APIC took it: the message may address none, and a pending
    /// interrupt is not taken twice.
    pub fn send(&self, message: MsiMessage) -> Result<bool> {
        let MsiMessage { address, data } = message;
        let taken = self.fd().signal_msi(kvm_msi { address_lo: address, data, ..Default::default() });
        match taken {
            Ok(count) => Ok(count > 0),
            // KVM returns -1 for a message that no local APIC takes, which reads as EPERM.
            Err(error) if error.errno() == libc::EPERM => Ok(false),
            Err(error) => Err(kvm_error("KVM_SIGNAL_MSI", error)),
        }
    }

    /// Makes KVM report the end of the interrupts that these messages raise, each with its pin (KVM API,
    /// sections 4.52 and 5, `KVM_EXIT_IOAPIC_EOI`). Replaces the earlier messages.
    pub fn watch_ends(&self, messages: &[(u32, MsiMessage)]) -> Result<()> {
        let entries: Vec<_> = messages.iter().map(|&(pin, message)| route(pin, message)).collect();
        let routing =
            KvmIrqRouting::from_entries(&entries).expect("an IOAPIC has fewer pins than KVM has routes");
        self.fd().set_gsi_routing(&routing).context("KVM_SET_GSI_ROUTING")
    }
}

fn route(pin: u32, message: MsiMessage) -> kvm_irq_routing_entry {
    let MsiMessage { address, data } = message;
    let mut entry = kvm_irq_routing_entry { gsi: pin, type_: KVM_IRQ_ROUTING_MSI, ..Default::default() };
    entry.u.msi = kvm_irq_routing_msi { address_lo: address, data, ..Default::default() };
    entry
}
