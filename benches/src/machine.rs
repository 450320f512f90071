//! An empty VM made of KVM's calls alone, in the order of volt-vmm's shell: memory slots before any
//! in-kernel device.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use kvm_bindings::{
    KVM_CAP_SPLIT_IRQCHIP, KVM_PIT_SPEAKER_DUMMY, kvm_enable_cap, kvm_pit_config, kvm_userspace_memory_region,
};
use kvm_ioctls::{IoEventAddress, Kvm, NoDatamatch, VcpuFd, VmFd};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use volt_vmm::IrqchipKind;

use crate::{OrSay, Result};

/// More than any of them has.
const MEMORY: usize = 4 << 30;
const TSS_ADDRESS: usize = 0xfffb_d000;
const IDENTITY_MAP_ADDRESS: u64 = 0xfffb_c000;
const PINS: u64 = 24;
/// Where virtio devices lie.
const FIRST_DEVICE: u64 = 0xd000_0000;
const DEVICE_LEN: u64 = 0x1000;

/// The VM. Dropped, it is closed.
#[derive(Debug)]
pub struct Machine {
    // Before the VM's own descriptor.
    _vcpus: Vec<VcpuFd>,
    _vm: VmFd,
    _notifications: Vec<EventFd>,
}

impl Machine {
    /// Makes one, with `mib` of memory, so many vCPUs and ioeventfds. A virtio device takes one of those for
    /// its driver's notifications.
    ///
    /// # Errors
    /// KVM refuses.
    pub fn make(kvm: &Kvm, mib: u64, irqchip: IrqchipKind, vcpus: u8, ioeventfds: u64) -> Result<Self> {
        let vm = kvm.create_vm().or_say("create a VM")?;
        vm.set_identity_map_address(IDENTITY_MAP_ADDRESS).or_say("set the identity map's address")?;
        vm.set_tss_address(TSS_ADDRESS).or_say("set the TSS's address")?;
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: (mib << 20).min(MEMORY as u64),
            userspace_addr: memory()?,
        };
        // SAFETY: the range stays mapped as long as this process lives, and nobody looks at what is in it.
        unsafe { vm.set_user_memory_region(region) }.or_say("register a memory slot")?;
        match irqchip {
            IrqchipKind::Kernel => vm.create_irq_chip().or_say("create the irqchip")?,
            IrqchipKind::Split => {
                let args = [PINS, 0, 0, 0];
                let split = kvm_enable_cap { cap: KVM_CAP_SPLIT_IRQCHIP, args, ..Default::default() };
                vm.enable_cap(&split).or_say("split the irqchip")?;
            }
        }
        let vcpus =
            (0..vcpus.into()).map(|id| vm.create_vcpu(id).or_say("create a vCPU")).collect::<Result<_>>()?;
        if irqchip == IrqchipKind::Kernel {
            let pit = kvm_pit_config { flags: KVM_PIT_SPEAKER_DUMMY, ..Default::default() };
            vm.create_pit2(pit).or_say("create the PIT")?;
        }
        let notifications = (0..ioeventfds).map(|number| notification(&vm, number)).collect::<Result<_>>()?;
        Ok(Self { _vcpus: vcpus, _vm: vm, _notifications: notifications })
    }
}

fn notification(vm: &VmFd, number: u64) -> Result<EventFd> {
    let eventfd = EventFd::new(EFD_NONBLOCK).or_say("make an eventfd")?;
    let at = IoEventAddress::Mmio(FIRST_DEVICE + number * DEVICE_LEN);
    vm.register_ioevent(&eventfd, &at, NoDatamatch).or_say("register an ioeventfd")?;
    Ok(eventfd)
}

/// Guest memory that no guest ever touches: one for all VMs of this process, so that closing one unmaps
/// nothing.
fn memory() -> Result<u64> {
    static MAPPED: OnceLock<usize> = OnceLock::new();
    let address = *MAPPED.get_or_init(|| {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        unsafe {
            libc::mmap(std::ptr::null_mut(), MEMORY, access, flags | libc::MAP_NORESERVE, -1, 0) as usize
        }
    });
    if address == libc::MAP_FAILED as usize {
        return Err("cannot map guest memory".to_owned());
    }
    Ok(address as u64)
}
