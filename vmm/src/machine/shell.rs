//! The shell of a VM: KVM's objects without guest memory and devices, created in the fastest order.
//!
//! Memory slots come first, and ioeventfds last. Registering an in-kernel device starts an SRCU grace period,
//! and the next change of a memory slot would wait for it. The wait takes 7 to 14 ms, and a whole shell
//! 0.4 ms.
//!
//! Memory can be mapped over the reserved range before or after the shell is made. Before is faster: KVM
//! drops its mappings of a registered slot when the memory under it is replaced (0.8 ms for 4 GiB).

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvm_ioctls::Kvm;
use serde::{Deserialize, Serialize};

use crate::config::{IrqchipKind, VmConfig};
use crate::error::Result;
use crate::kvm;
use crate::kvm::clock::ClockMoved;
use crate::kvm::vcpu::{Vcpu, VcpuState};
use crate::kvm::vm::VmHandle;
use crate::machine::board::BoardSlot;
use crate::machine::vcpu_thread::VcpuThread;
use crate::memory::page_set::PageSet;
use crate::memory::ram::GuestRam;
use crate::persist::Persist;
use crate::run_control::Control;
use crate::sync::lock;
use crate::timing::step_done;

/// A change of memory slots that takes longer is logged. It usually takes some ten milliseconds.
const SLOW_SLOT_CHANGE: Duration = Duration::from_secs(1);

/// The thread that runs the first vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstVcpu {
    /// A thread of its own, as for the other vCPUs.
    OwnThread,
    /// A thread of the caller ([`crate::LentVm::run`]). Starting a thread takes a twentieth of a restore.
    LentThread,
}

/// The fixed properties of an empty VM. Only a snapshot of the same shape can be restored into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct VmShape {
    /// Guest memory in bytes.
    pub memory_bytes: u64,
    /// Number of vCPUs.
    pub vcpus: u8,
    /// Location of the interrupt controllers.
    pub irqchip: IrqchipKind,
    /// Whether memory writes are logged from the start, as for [`crate::RestoreOptions::rewindable`].
    #[serde(default)]
    pub logs_writes: bool,
}

impl VmShape {
    /// Returns the shape of a VM with default interrupt controllers that logs no writes.
    #[must_use]
    pub fn new(memory_bytes: u64, vcpus: u8) -> Self {
        Self { memory_bytes, vcpus, irqchip: IrqchipKind::default(), logs_writes: false }
    }

    /// Location of the interrupt controllers.
    #[must_use]
    pub fn irqchip(self, irqchip: IrqchipKind) -> Self {
        Self { irqchip, ..self }
    }

    /// Logs memory writes from the start, as for [`crate::RestoreOptions::rewindable`].
    #[must_use]
    pub fn logs_writes(self) -> Self {
        Self { logs_writes: true, ..self }
    }

    /// Returns the shape of a VM that logs no writes.
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
    /// Whether [`Shell::prepare`] has set the vCPU state that is about to be restored.
    pub(crate) is_prepared: bool,
    // Last: KVM's memory slots point into it.
    pub(crate) ram: GuestRam,
}

impl Shell {
    /// Makes a shell of this shape over `ram`, which has the length that the shape says.
    ///
    /// # Errors
    /// Returns an error if `/dev/kvm` cannot be used, or if the host refuses memory, a vCPU or a thread.
    pub fn new(ram: GuestRam, shape: VmShape, first: FirstVcpu) -> Result<Self> {
        let VmShape { memory_bytes: _, vcpus, irqchip, logs_writes } = shape;
        let kvm = Arc::new(kvm::open()?);
        let vm = VmHandle::create_or_take(&kvm)?;
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
        // From here on, an early return drops the shell, which ends its threads.
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

    /// Sets vCPU state ahead of a restore. These calls take most of a restore's time.
    ///
    /// # Errors
    /// Returns an error if KVM refuses the state. The shell must be dropped then.
    pub fn prepare(&mut self, vcpus: &[VcpuState]) -> Result<()> {
        self.vcpus.iter().zip(vcpus).try_for_each(|(thread, state)| {
            let mut vcpu = lock(&thread.vcpu);
            vcpu.set_tsc_rate(state)?;
            vcpu.prepare(state)
        })
    }

    /// Restores parked vCPUs, with TSCs later by `skipped`. After [`Shell::prepare`], restores only the rest
    /// of their state.
    ///
    /// # Errors
    /// Returns an error if KVM refuses the state. The VM must not run then.
    pub(crate) fn restore_vcpus(&mut self, states: &[VcpuState], clock: ClockMoved) -> Result<()> {
        let is_prepared = mem::take(&mut self.is_prepared);
        let mut vcpus: Vec<_> = self.vcpus.iter().map(|thread| lock(&thread.vcpu)).collect();
        if !is_prepared {
            vcpus.iter_mut().zip(states).try_for_each(|(vcpu, state)| vcpu.set_tsc_rate(state))?;
        }
        Vcpu::restore_tscs(vcpus.iter().map(|vcpu| &**vcpu).zip(states), clock)?;
        vcpus.iter_mut().zip(states).try_for_each(|(vcpu, state)| match is_prepared {
            true => vcpu.refresh(state),
            false => vcpu.restore(state),
        })
    }

    /// Ends the VM if a page fault cannot be resolved. Called before the VM runs.
    pub fn end_vm_on_fault_failure(&self) {
        let Some(faults) = self.ram.faults() else { return };
        let control = Arc::downgrade(&self.control);
        faults.when_unreadable(move |why| {
            if let Some(control) = control.upgrade() {
                control.end(Err(format!("its memory cannot be read: {why}")));
            }
        });
    }

    /// Starts the log of all writes to guest memory, which [`Shell::take_dirty`] reads. The guest may run.
    /// The log cannot be stopped.
    ///
    /// The guest's first write to a page after each read costs a fault. The start changes memory slots, which
    /// takes some ten milliseconds if the kernel has devices of the VM. It waits for an SRCU grace period
    /// (`kvm_swap_active_memslots` of virt/kvm/kvm_main.c). The kernel thread that ends the period may wait
    /// long for a CPU on a busy host.
    ///
    /// # Errors
    /// Returns an error if KVM refuses.
    pub fn watch_writes(&self) -> Result<()> {
        self.ram.watch_own_writes();
        if !self.logs_dirty.load(Ordering::Acquire) {
            let began = Instant::now();
            set_slots(&self.vm, &self.ram, true)?;
            self.logs_dirty.store(true, Ordering::Release);
            if began.elapsed() > SLOW_SLOT_CHANGE {
                log::warn!("KVM took {:.1?} to start its dirty log", began.elapsed());
            }
        }
        Ok(())
    }

    /// Adds the pages written since [`Shell::watch_writes`] or the last call.
    ///
    /// # Errors
    /// Returns an error if KVM refuses.
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
        // SAFETY: the range is reserved for this VM's memory, and the shell drops `ram` after `vm`.
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
