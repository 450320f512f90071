//! An empty VM: everything KVM has to make, made before anyone knows what will run in it, in the one order that is fast.
//!
//! Registering an in-kernel device leaves an SRCU grace period behind that the next memory-slot change waits for (7 to
//! 14 ms, against 0.4 for the whole of this): so memory slots come first, and ioeventfds after everything.
//!
//! A shell does not care whether memory is mapped over its reserved range before or after. Before is faster where it is
//! known by then: KVM has to forget what lay under a registered slot when it is replaced (0.8 ms for 4 GiB).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvm_ioctls::Kvm;

use crate::config::IrqchipKind;
use crate::control::Control;
use crate::cpu::VcpuThread;
use crate::error::Result;
use crate::kvm;
use crate::kvm::vcpu::Vcpu;
use crate::kvm::vm::VmHandle;
use crate::memory::pages::PageSet;
use crate::memory::ram::GuestRam;
use crate::timing::step_done;

/// Who runs the first vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstVcpu {
    /// A thread of its own, as the others have.
    OwnThread,
    /// A thread that will be lent ([`crate::Vm::lend_thread`]): starting one takes a twentieth of a restore.
    LentThread,
}

/// An empty VM with parked vCPUs over reserved memory.
#[derive(Debug)]
pub struct Shell {
    pub(crate) kvm: Arc<Kvm>,
    pub(crate) vm: VmHandle,
    pub(crate) irqchip: IrqchipKind,
    pub(crate) control: Arc<Control>,
    pub(crate) vcpus: Vec<VcpuThread>,
    logs_dirty: AtomicBool,
    // Last: KVM's memory slots point into it.
    pub(crate) ram: GuestRam,
}

impl Shell {
    /// Makes one with `vcpus` vCPUs and such an irqchip over `ram`.
    ///
    /// # Errors
    /// `/dev/kvm` cannot be used, or the host refuses memory, a vCPU or a thread.
    pub fn new(ram: GuestRam, vcpus: u8, irqchip: IrqchipKind, first: FirstVcpu) -> Result<Self> {
        let kvm = Arc::new(kvm::open()?);
        let vm = VmHandle::create(&kvm)?;
        step_done("VM create");
        set_slots(&vm, &ram, false)?;
        step_done("memory register");
        match irqchip {
            IrqchipKind::Kernel => vm.create_irqchip()?,
            IrqchipKind::Split => vm.split_irqchip()?,
        }
        step_done("irqchip create");
        // From here on an early return drops a whole shell, which tells its threads to return.
        let mut shell = Self {
            kvm,
            vm,
            irqchip,
            control: Control::new(),
            vcpus: Vec::new(),
            logs_dirty: AtomicBool::new(false),
            ram,
        };
        for id in 0..vcpus {
            let mut thread = VcpuThread::parked(Vcpu::create(&shell.kvm, &shell.vm, id)?)?;
            if id > 0 || first == FirstVcpu::OwnThread {
                thread.spawn(id, &shell.control)?;
            }
            shell.vcpus.push(thread);
        }
        step_done("vCPU create");
        if irqchip == IrqchipKind::Kernel {
            shell.vm.create_pit()?;
            step_done("PIT create");
        }
        Ok(shell)
    }

    /// From now on [`Shell::take_dirty`] knows what is written to guest memory, whoever writes it. The guest may run. It goes on
    /// for good: a page costs the guest a fault when it first writes to it after it was asked for, and to change a slot takes some
    /// ten milliseconds where the kernel has devices of the VM's.
    ///
    /// # Errors
    /// KVM refuses.
    pub fn watch_writes(&self) -> Result<()> {
        self.ram.watch_own_writes();
        if !self.logs_dirty.load(Ordering::Acquire) {
            set_slots(&self.vm, &self.ram, true)?;
            self.logs_dirty.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Adds the pages that were written since [`Shell::watch_writes`], or since this was called last.
    ///
    /// # Errors
    /// KVM refuses.
    pub fn take_dirty(&self, to: &mut PageSet) -> Result<()> {
        for (slot, region) in (0..).zip(self.ram.regions()) {
            to.add_words(region.offset, self.vm.dirty_log(slot, region.len)?);
        }
        self.ram.take_own_writes(to);
        Ok(())
    }
}

fn set_slots(vm: &VmHandle, ram: &GuestRam, log_dirty: bool) -> Result<()> {
    (0..).zip(ram.regions()).try_for_each(|(slot, region)| {
        let host = (ram.host_address(region), region.len);
        // SAFETY: the range is reserved for this VM's memory, and `ram` goes after `vm` when the shell is dropped.
        #[allow(unsafe_code)]
        unsafe {
            vm.set_slot(slot, region.gpa, host, log_dirty)
        }
    })
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.control.quit();
    }
}
