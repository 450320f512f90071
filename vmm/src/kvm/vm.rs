//! The VM descriptor, and the calls that make a VM out of it. Their order is [`crate::machine::shell`]'s business.

use std::sync::Arc;

use kvm_bindings::{
    KVM_CAP_SPLIT_IRQCHIP, KVM_MEM_LOG_DIRTY_PAGES, KVM_PIT_SPEAKER_DUMMY, kvm_enable_cap, kvm_pit_config,
    kvm_userspace_memory_region,
};
use kvm_ioctls::{IoEventAddress, Kvm, NoDatamatch, VmFd};
use vmm_sys_util::eventfd::EventFd;

use super::{OrRefused, refused};
use crate::error::Result;

/// Pins of the IOAPIC, of which KVM keeps routes.
pub const IO_APIC_PINS: usize = 24;

/// Three pages below 4 GiB for Intel's real-mode emulation, in the hole where no RAM is (KVM API, section 4.13).
const TSS_ADDRESS: usize = 0xfffb_d000;
/// One page just below (KVM API, section 4.77).
const IDENTITY_MAP_ADDRESS: u64 = 0xfffb_c000;

/// One KVM virtual machine. Cloning shares the descriptor.
#[derive(Clone, Debug)]
pub struct VmHandle {
    fd: Arc<VmFd>,
}

impl VmHandle {
    /// An empty VM. The two addresses are set now because on Intel the first one takes a memory slot.
    pub fn create(kvm: &Kvm) -> Result<Self> {
        let fd = kvm.create_vm().or_refused("KVM_CREATE_VM")?;
        fd.set_identity_map_address(IDENTITY_MAP_ADDRESS).or_refused("KVM_SET_IDENTITY_MAP_ADDR")?;
        fd.set_tss_address(TSS_ADDRESS).or_refused("KVM_SET_TSS_ADDR")?;
        Ok(Self { fd: Arc::new(fd) })
    }

    /// Registers a memory slot: `len` bytes of guest physical memory at `gpa` are what this process has at `host`. The same once
    /// more changes only whether KVM keeps a log of the pages that the guest writes.
    ///
    /// # Safety
    /// `host..host + len` must be a mapping (of any protection) that belongs to the VM for as long as the VM exists:
    /// the guest can write all of it.
    #[allow(unsafe_code)]
    pub unsafe fn set_slot(
        &self,
        slot: u32,
        gpa: u64,
        (host, len): (*mut u8, u64),
        log_dirty: bool,
    ) -> Result<()> {
        let region = kvm_userspace_memory_region {
            slot,
            flags: if log_dirty { KVM_MEM_LOG_DIRTY_PAGES } else { 0 },
            guest_phys_addr: gpa,
            memory_size: len,
            userspace_addr: host as u64,
        };
        // SAFETY: the caller gives the range to this VM.
        unsafe { self.fd.set_user_memory_region(region) }
            .or_refused(&format!("KVM_SET_USER_MEMORY_REGION of {} MiB at {gpa:#x}", len >> 20))
    }

    /// The pages of a slot of `len` bytes that the guest wrote since the log began or was last asked for, a bit a page (KVM API,
    /// section 4.8).
    pub fn dirty_log(&self, slot: u32, len: u64) -> Result<Vec<u64>> {
        self.fd.get_dirty_log(slot, len as usize).or_refused(&format!("KVM_GET_DIRTY_LOG of slot {slot}"))
    }

    /// PIC, IOAPIC and local APICs in the kernel. Must come after the memory slots and before the vCPUs.
    pub fn create_irqchip(&self) -> Result<()> {
        self.fd.create_irq_chip().or_refused("KVM_CREATE_IRQCHIP")
    }

    /// Local APICs in the kernel, and of an IOAPIC no more than routes for its pins. Must come after the memory slots and
    /// before the vCPUs.
    pub fn split_irqchip(&self) -> Result<()> {
        let args = [IO_APIC_PINS as u64, 0, 0, 0];
        let cap = kvm_enable_cap { cap: KVM_CAP_SPLIT_IRQCHIP, args, ..Default::default() };
        self.fd.enable_cap(&cap).or_refused("KVM_ENABLE_CAP of KVM_CAP_SPLIT_IRQCHIP")
    }

    /// The 8254 timer in the kernel, with its gate at port 0x61. Must come after the irqchip.
    pub fn create_pit(&self) -> Result<()> {
        let config = kvm_pit_config { flags: KVM_PIT_SPEAKER_DUMMY, ..Default::default() };
        self.fd.create_pit2(config).or_refused("KVM_CREATE_PIT2")
    }

    /// Sends an edge on an interrupt line (a GSI) of the kernel's irqchip. Unlike an irqfd the call is over when the irqchip has it,
    /// so that an interrupt is never on its way while the irqchip is being saved.
    pub fn pulse(&self, gsi: u32) -> Result<()> {
        let raised = self.fd.set_irq_line(gsi, true).and_then(|()| self.fd.set_irq_line(gsi, false));
        raised.map_err(|error| refused(&format!("KVM_IRQ_LINE of interrupt line {gsi}"), error))
    }

    /// Has KVM interrupt on `gsi` whenever the eventfd is written (KVM API, section 4.75).
    pub fn connect_interrupt(&self, line: &EventFd, gsi: u32) -> Result<()> {
        self.fd.register_irqfd(line, gsi).or_refused(&format!("KVM_IRQFD of interrupt line {gsi}"))
    }

    /// Has KVM write the eventfd for whatever the guest writes to the register at `gpa`, instead of leaving the guest (KVM
    /// API, section 4.59). Must come after the vCPUs.
    pub fn connect_notification(&self, notification: &EventFd, gpa: u64) -> Result<()> {
        self.fd
            .register_ioevent(notification, &IoEventAddress::Mmio(gpa), NoDatamatch)
            .or_refused(&format!("KVM_IOEVENTFD at {gpa:#x}"))
    }

    /// The descriptor, for this module's siblings.
    pub(super) fn fd(&self) -> &VmFd {
        &self.fd
    }
}
