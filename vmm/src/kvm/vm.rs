//! The VM descriptor, and the calls that set up a VM. [`crate::machine::shell`] defines their order.

use std::sync::{Arc, Mutex};

use kvm_bindings::{
    KVM_CAP_SPLIT_IRQCHIP, KVM_MEM_LOG_DIRTY_PAGES, KVM_PIT_SPEAKER_DUMMY, kvm_enable_cap, kvm_pit_config,
    kvm_userspace_memory_region,
};
use kvm_ioctls::{IoEventAddress, Kvm, NoDatamatch, VmFd};
use vmm_sys_util::eventfd::EventFd;

use super::{KvmContext, kvm_error};
use crate::error::Result;
use crate::sync::lock;

/// Number of IOAPIC pins that KVM keeps routes for.
pub const IO_APIC_PINS: usize = 24;

/// Three pages for Intel's real-mode emulation, below 4 GiB in the hole without RAM (KVM API, section 4.13).
const TSS_ADDRESS: usize = 0xfffb_d000;
/// One page below these (KVM API, section 4.77).
const IDENTITY_MAP_ADDRESS: u64 = 0xfffb_c000;

/// The VM that this process has created ahead.
static AHEAD: Ahead = Ahead(Mutex::new(Place::Free));

/// Place of a VM that is created ahead of its use. A process that forks must not have one, because a VM
/// belongs to the memory of the process that created it.
struct Ahead(Mutex<Place>);

enum Place {
    Free,
    #[cfg_attr(not(any(feature = "internal", test)), expect(dead_code))]
    Ready(VmHandle),
    /// A machine has its VM. Another one would stay for nothing.
    Past,
}

impl Ahead {
    #[cfg(any(feature = "internal", test))]
    fn fill(&self, kvm: &Kvm) -> Result<()> {
        let vm = VmHandle::create(kvm)?;
        let mut place = lock(&self.0);
        if matches!(*place, Place::Free) {
            *place = Place::Ready(vm);
        }
        Ok(())
    }

    fn take(&self) -> Option<VmHandle> {
        match std::mem::replace(&mut *lock(&self.0), Place::Past) {
            Place::Ready(vm) => Some(vm),
            Place::Free | Place::Past => None,
        }
    }
}

/// One KVM virtual machine. Cloning shares the descriptor.
#[derive(Clone, Debug)]
pub struct VmHandle {
    fd: Arc<VmFd>,
}

impl VmHandle {
    /// Creates an empty VM. Sets both addresses first, because on Intel setting the TSS address takes a
    /// memory slot.
    ///
    /// # Errors
    /// [`crate::Error::Kvm`] names the call.
    pub fn create(kvm: &Kvm) -> Result<Self> {
        let fd = kvm.create_vm().context("KVM_CREATE_VM")?;
        fd.set_identity_map_address(IDENTITY_MAP_ADDRESS).context("KVM_SET_IDENTITY_MAP_ADDR")?;
        fd.set_tss_address(TSS_ADDRESS).context("KVM_SET_TSS_ADDR")?;
        Ok(Self { fd: Arc::new(fd) })
    }

    /// As [`VmHandle::create`], of a VM that [`VmHandle::create_or_take`] returns later. KVM takes some
    /// 0.2 ms to create one.
    ///
    /// # Errors
    /// As [`VmHandle::create`].
    #[cfg(any(feature = "internal", test))]
    pub fn create_ahead(kvm: &Kvm) -> Result<()> {
        AHEAD.fill(kvm)
    }

    /// Returns the VM that was created ahead, the first time, and otherwise creates one.
    ///
    /// # Errors
    /// As [`VmHandle::create`].
    pub fn create_or_take(kvm: &Kvm) -> Result<Self> {
        AHEAD.take().map_or_else(|| Self::create(kvm), Ok)
    }

    /// Registers a memory slot: `len` bytes at `host` in this process become guest memory at `gpa`. A second
    /// call with the same range only switches the dirty log.
    ///
    /// # Safety
    /// `host..host + len` must be a mapping, of any protection, that belongs to the VM as long as the VM
    /// exists. The guest can write all of it.
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
            .context(&format!("KVM_SET_USER_MEMORY_REGION of {} MiB at {gpa:#x}", len >> 20))
    }

    /// Reads and clears the dirty log of a slot of `len` bytes (KVM API, section 4.8). Returns a bit for each
    /// page that the guest wrote since the log began or was read last.
    pub fn dirty_log(&self, slot: u32, len: u64) -> Result<Vec<u64>> {
        self.fd.get_dirty_log(slot, len as usize).context(&format!("KVM_GET_DIRTY_LOG of slot {slot}"))
    }

    /// Creates PIC, IOAPIC and local APICs in the kernel. Called after the memory slots and before the vCPUs.
    pub fn create_irqchip(&self) -> Result<()> {
        self.fd.create_irq_chip().context("KVM_CREATE_IRQCHIP")
    }

    /// Creates local APICs in the kernel, and routes for the pins of an IOAPIC outside it. Called after the
    /// memory slots and before the vCPUs.
    pub fn split_irqchip(&self) -> Result<()> {
        let args = [IO_APIC_PINS as u64, 0, 0, 0];
        let cap = kvm_enable_cap { cap: KVM_CAP_SPLIT_IRQCHIP, args, ..Default::default() };
        self.fd.enable_cap(&cap).context("KVM_ENABLE_CAP of KVM_CAP_SPLIT_IRQCHIP")
    }

    /// Creates the 8254 timer in the kernel, with its gate at port 0x61. Called after the irqchip.
    pub fn create_pit(&self) -> Result<()> {
        let config = kvm_pit_config { flags: KVM_PIT_SPEAKER_DUMMY, ..Default::default() };
        self.fd.create_pit2(config).context("KVM_CREATE_PIT2")
    }

    /// Sends an edge on an interrupt line (a GSI) of the kernel's irqchip. Unlike an irqfd, the call returns
    /// after the irqchip has taken the interrupt, so none is in flight when the irqchip is saved.
    pub fn pulse(&self, gsi: u32) -> Result<()> {
        let raised = self.fd.set_irq_line(gsi, true).and_then(|()| self.fd.set_irq_line(gsi, false));
        raised.map_err(|error| kvm_error(&format!("KVM_IRQ_LINE of interrupt line {gsi}"), error))
    }

    /// Makes each write to the eventfd raise an interrupt on `gsi` (KVM API, section 4.75).
    pub fn connect_interrupt(&self, line: &EventFd, gsi: u32) -> Result<()> {
        self.fd.register_irqfd(line, gsi).context(&format!("KVM_IRQFD of interrupt line {gsi}"))
    }

    /// Makes each guest write to the register at `gpa` signal the eventfd, without an exit (KVM API, section
    /// 4.59). Called after the vCPUs.
    pub fn connect_notification(&self, notification: &EventFd, gpa: u64) -> Result<()> {
        self.fd
            .register_ioevent(notification, &IoEventAddress::Mmio(gpa), NoDatamatch)
            .context(&format!("KVM_IOEVENTFD at {gpa:#x}"))
    }

    /// Returns the descriptor.
    pub(super) fn fd(&self) -> &VmFd {
        &self.fd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vm_created_ahead_is_taken_once() {
        let Ok(kvm) = crate::kvm::open() else { return crate::testing::skip("no KVM here") };
        let ahead = Ahead(Mutex::new(Place::Free));
        ahead.fill(&kvm).unwrap();
        let vm = ahead.take().unwrap();
        vm.split_irqchip().unwrap();
        assert!(ahead.take().is_none());
        // It comes too late.
        ahead.fill(&kvm).unwrap();
        assert!(ahead.take().is_none());
    }
}
