//! Messages to the local APICs: what an interrupt is where the kernel has no IOAPIC.

use kvm_bindings::{KVM_IRQ_ROUTING_MSI, KvmIrqRouting, kvm_irq_routing_entry, kvm_irq_routing_msi, kvm_msi};

use super::vm::VmHandle;
use super::{OrRefused, refused};
use crate::error::Result;

/// A message signalled interrupt (Intel SDM volume 3, section 11.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Which local APICs.
    pub address: u32,
    /// What they are to do.
    pub data: u32,
}

impl VmHandle {
    /// Sends a message. Whether a local APIC took it: none may be meant, and an interrupt that waits there already is not
    /// taken twice.
    pub fn send(&self, message: Message) -> Result<bool> {
        let Message { address, data } = message;
        let taken = self.fd().signal_msi(kvm_msi { address_lo: address, data, ..Default::default() });
        match taken {
            Ok(count) => Ok(count > 0),
            // KVM's -1 for a message to nobody, read as an error number.
            Err(error) if error.errno() == libc::EPERM => Ok(false),
            Err(error) => Err(refused("KVM_SIGNAL_MSI", error)),
        }
    }

    /// Has KVM report the end of the interrupts that these messages raise, each by the number of its pin (KVM API, section
    /// 4.52 and 5, `KVM_EXIT_IOAPIC_EOI`). Those of before are forgotten.
    pub fn watch_ends(&self, messages: &[(u32, Message)]) -> Result<()> {
        let entries: Vec<_> = messages.iter().map(|&(pin, message)| route(pin, message)).collect();
        let routing =
            KvmIrqRouting::from_entries(&entries).expect("an IOAPIC has fewer pins than KVM has routes");
        self.fd().set_gsi_routing(&routing).or_refused("KVM_SET_GSI_ROUTING")
    }
}

fn route(pin: u32, message: Message) -> kvm_irq_routing_entry {
    let Message { address, data } = message;
    let mut entry = kvm_irq_routing_entry { gsi: pin, type_: KVM_IRQ_ROUTING_MSI, ..Default::default() };
    entry.u.msi = kvm_irq_routing_msi { address_lo: address, data, ..Default::default() };
    entry
}
