//! An empty VM: everything KVM has to make, made before anyone knows what will run in it, in the one order that is fast.
//!
//! Registering an in-kernel device leaves an SRCU grace period behind that the next memory-slot change waits for (7 to
//! 14 ms, against 0.4 for the whole of this): so memory slots come first, and ioeventfds after everything.
//!
//! A shell does not care whether memory is mapped over its reserved range before or after. Before is faster where it is
//! known by then: KVM has to forget what lay under a registered slot when it is replaced (0.8 ms for 4 GiB).

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvm_ioctls::Kvm;
use serde::{Deserialize, Serialize};

use crate::config::{IrqchipKind, VmConfig};
use crate::error::Result;
use crate::kvm;
use crate::kvm::vcpu::{Vcpu, VcpuState};
use crate::kvm::vm::VmHandle;
use crate::machine::board::BoardSlot;
use crate::machine::vcpu_thread::VcpuThread;
use crate::memory::page_set::PageSet;
use crate::memory::ram::GuestRam;
use crate::persist::Persist;
use crate::run_control::Control;
use crate::sync::lock;
use crate::threads;
use crate::timing::step_done;

/// How long a vCPU may wait for memory that is filled as it is needed once the VM has ended.
const TO_END: Duration = Duration::from_secs(2);

/// What a user would notice of a call that takes some ten milliseconds.
const SLOW: Duration = Duration::from_secs(1);

/// Who runs the first vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstVcpu {
    /// A thread of its own, as the others have.
    OwnThread,
    /// A thread that will be lent ([`crate::LentVm::run`]): starting one takes a twentieth of a restore.
    LentThread,
}

/// What an empty VM has, which cannot be changed any more. Only what has this shape too is ever restored into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmShape {
    /// Guest memory in bytes.
    pub memory_bytes: u64,
    /// vCPUs.
    pub vcpus: u8,
    /// Where the interrupt controllers are.
    pub irqchip: IrqchipKind,
    /// Whether what is written to memory is known from the start, as for [`crate::RestoreOptions::rewindable`].
    #[serde(default)]
    pub logs_writes: bool,
}

impl VmShape {
    /// That of a VM, which logs no writes.
    #[must_use]
    pub fn of(config: &VmConfig) -> Self {
        Self {
            memory_bytes: config.memory_bytes(),
            vcpus: config.vcpus,
            irqchip: config.irqchip,
            logs_writes: false,
        }
    }
}

/// An empty VM with parked vCPUs over reserved memory.
#[derive(Debug)]
pub struct Shell {
    pub(crate) kvm: Arc<Kvm>,
    pub(crate) vm: VmHandle,
    pub(crate) irqchip: IrqchipKind,
    pub(crate) control: Arc<Control>,
    pub(crate) board: Arc<BoardSlot>,
    pub(crate) vcpus: Vec<VcpuThread>,
    logs_dirty: AtomicBool,
    /// The vCPUs have the state already that is about to be restored ([`Shell::prepare`]), and have not run.
    pub(crate) is_prepared: bool,
    // Last: KVM's memory slots point into it.
    pub(crate) ram: GuestRam,
}

impl Shell {
    /// Makes one of this shape over `ram`, which is as long as that says.
    ///
    /// # Errors
    /// `/dev/kvm` cannot be used, or the host refuses memory, a vCPU or a thread.
    pub fn new(ram: GuestRam, shape: VmShape, first: FirstVcpu) -> Result<Self> {
        let VmShape { memory_bytes: _, vcpus, irqchip, logs_writes } = shape;
        let kvm = Arc::new(kvm::open()?);
        let vm = VmHandle::create(&kvm)?;
        step_done("VM create");
        if logs_writes {
            ram.watch_own_writes();
        }
        set_slots(&vm, &ram, logs_writes)?;
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
            board: Arc::default(),
            vcpus: Vec::new(),
            logs_dirty: AtomicBool::new(logs_writes),
            is_prepared: false,
            ram,
        };
        for id in 0..vcpus {
            let mut thread = VcpuThread::parked(Vcpu::create(&shell.kvm, &shell.vm, id)?)?;
            if id > 0 || first == FirstVcpu::OwnThread {
                thread.spawn(id, &shell.control, &shell.board)?;
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

    /// Gives the vCPUs a state ahead of time: most of a restore is to wait for KVM to take it.
    ///
    /// # Errors
    /// KVM refuses it. The shell is of no more use.
    pub fn prepare(&mut self, vcpus: &[VcpuState]) -> Result<()> {
        self.vcpus.iter().zip(vcpus).try_for_each(|(thread, state)| {
            let mut vcpu = lock(&thread.vcpu);
            vcpu.set_tsc_rate(state)?;
            vcpu.prepare(state)
        })
    }

    /// Restores the vCPUs, which must be parked, or what [`Shell::prepare`] has left of it.
    ///
    /// # Errors
    /// KVM refuses it. The VM must not run.
    pub(crate) fn restore_vcpus(&mut self, states: &[VcpuState]) -> Result<()> {
        let is_prepared = mem::take(&mut self.is_prepared);
        let mut vcpus: Vec<_> = self.vcpus.iter().map(|thread| lock(&thread.vcpu)).collect();
        if !is_prepared {
            vcpus.iter_mut().zip(states).try_for_each(|(vcpu, state)| vcpu.set_tsc_rate(state))?;
        }
        Vcpu::restore_tscs(vcpus.iter().map(|vcpu| &**vcpu).zip(states))?;
        vcpus.iter_mut().zip(states).try_for_each(|(vcpu, state)| match is_prepared {
            true => vcpu.refresh(state),
            false => vcpu.restore(state),
        })
    }

    /// Where memory is filled as it is needed: what cannot be had ends the VM, and no vCPU that waits for it is waited for longer than
    /// [`TO_END`]. Before it runs.
    pub fn end_vm_on_fault_failure(&self) {
        let Some(faults) = self.ram.faults() else { return };
        let control = Arc::downgrade(&self.control);
        faults.when_unreadable(move |why| {
            if let Some(control) = control.upgrade() {
                control.end(Err(format!("its memory cannot be had: {why}")));
            }
        });
        let (faults, control) = (Arc::downgrade(faults), Arc::downgrade(&self.control));
        self.control.at_end(move || {
            let wait = move || {
                if let (Some(faults), Some(control)) = (faults.upgrade(), control.upgrade())
                    && !control.wait_parked(TO_END)
                {
                    let _let_go = faults.let_go_after(Duration::ZERO, "it ended while it waited for memory");
                    while !control.wait_parked(TO_END) {}
                }
            };
            let spawned = threads::spawn("end", wait);
            drop(
                spawned
                    .inspect_err(|error| log::warn!("nobody sees to it that the VM ends in time: {error}")),
            );
        });
    }

    /// From now on [`Shell::take_dirty`] knows what is written to guest memory, whoever writes it. The guest may run. It goes on
    /// for good: a page costs the guest a fault when it first writes to it after it was asked for, and to change a slot takes some
    /// ten milliseconds where the kernel has devices of the VM's. It ends with a grace period of SRCU (`kvm_swap_active_memslots` of
    /// virt/kvm/kvm_main.c), which a kernel thread brings about that may wait long for a processor where there are too few.
    ///
    /// # Errors
    /// KVM refuses.
    pub fn watch_writes(&self) -> Result<()> {
        self.ram.watch_own_writes();
        if !self.logs_dirty.load(Ordering::Acquire) {
            let began = Instant::now();
            set_slots(&self.vm, &self.ram, true)?;
            self.logs_dirty.store(true, Ordering::Release);
            if began.elapsed() > SLOW {
                log::warn!(
                    "KVM took {:.1?} to begin its log of the pages that a guest writes",
                    began.elapsed()
                );
            }
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
        self.board.clear();
    }
}
