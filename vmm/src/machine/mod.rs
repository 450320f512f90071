//! The machine: a shell (an empty VM) with guest memory mapped over it and devices on its buses. Boot and
//! restore use the same constructor.
//!
//! ```text
//! cold boot:  Backing::Fresh.map(ram)    Machine::new(shell, config)  then boot()
//! restore:    Backing::Private.map(ram)  Machine::new(shell, config)  then Persist::restore()
//! ```

pub(crate) mod balloon;
pub(crate) mod board;
pub(crate) mod jump;
pub(crate) mod pool;
pub(crate) mod shared;
pub(crate) mod shell;
mod vcpu_stop;
pub(crate) mod vcpu_thread;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use volt_kernel::{NamedFile, Payload};

use crate::config::{ClockMode, FileRef, VmConfig};
use crate::console::Console;
use crate::devices::platform::{Buses, Platform};
use crate::devices::virtio_slots;
use crate::error::{Error, Result, report};
use crate::kvm::clock::{Clock, ClockState};
use crate::kvm::cpuid;
use crate::kvm::irqchip::{Irqchip, IrqchipState};
use crate::kvm::template;
use crate::kvm::vcpu::{Vcpu, VcpuState};
use crate::machine::board::Board;
use crate::machine::shell::Shell;
pub(crate) use crate::machine::vcpu_thread::LentVcpu;
use crate::memory::lazy::faults::FaultDeadline;
use crate::persist::{Blob, Persist};
use crate::sync::lock;
use crate::timing::step_done;

/// A whole machine. After a failed restore it must be dropped without running.
#[derive(Debug)]
pub struct Machine {
    platform: Platform,
    irqchip: Irqchip,
    clock: Clock,
    /// The time that the clocks skipped at a restore after which the guest has not run.
    skipped: Duration,
    // Dropped after the fields above, which use it.
    shell: Shell,
    /// Releases threads that are blocked on page faults. Set while the machine is dropped.
    let_go: Option<FaultDeadline>,
}

/// The time that a drop leaves to threads that are blocked on page faults.
const DROP_LIMIT: Duration = Duration::from_secs(2);
/// The time that a pause leaves to a thread that is blocked on a page fault. The VM ends after it.
const HALT_LIMIT: Duration = Duration::from_secs(10);

/// The state of a machine, apart from its memory.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineState {
    /// vCPUs, in the order of their ids.
    pub vcpus: Vec<VcpuState>,
    /// PICs, IOAPIC and PIT, if they are in the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub irqchip: Option<IrqchipState>,
    /// kvmclock.
    pub clock: ClockState,
    /// Devices, by name.
    pub devices: BTreeMap<String, Blob>,
}

impl Machine {
    /// Adds the devices to a shell whose memory is mapped.
    ///
    /// # Errors
    /// Returns an error if a device's file or socket cannot be opened, or if the host refuses a resource.
    pub fn new(shell: Shell, config: &VmConfig, console: Console) -> Result<Self> {
        let vm = (&shell.vm, shell.irqchip);
        let platform = Platform::new(vm, &shell.ram, &shell.control, console, config)?;
        let Buses { ports, mmio, lines } = platform.buses();
        let (ram, control) = (shell.ram.clone(), Arc::clone(&shell.control));
        shell.board.put(Board { ports, mmio, lines, ram, control });
        let (irqchip, clock) = (Irqchip::of(&shell.vm, shell.irqchip), Clock::new(shell.vm.clone()));
        step_done("devices");
        Ok(Self { platform, irqchip, clock, skipped: Duration::ZERO, shell, let_go: None })
    }

    /// Loads the kernel and sets the boot vCPU to its entry point.
    ///
    /// # Errors
    /// Returns an error if the kernel or initrd cannot be read or does not fit, or if KVM refuses a vCPU's
    /// registers.
    pub fn boot(&mut self, config: &VmConfig) -> Result<()> {
        let open = |file: &FileRef, what| -> Result<NamedFile> {
            Ok(NamedFile { name: file.to_string(), file: file.open(what)? })
        };
        let boot = &config.boot;
        let kernel = open(&boot.kernel, "open kernel")?;
        let initrd = boot.initrd.as_ref().map(|initrd| open(initrd, "open initrd")).transpose()?;
        let mut cmdline = boot.cmdline.clone();
        volt_kernel::cmdline::add_words(&mut cmdline, &virtio_slots::cmdline(&config.devices));
        let payload = Payload { kernel: &kernel, initrd: initrd.as_ref(), cmdline: &cmdline };
        let entry = volt_kernel::load(self.shell.ram.guest(), &payload, &self.platform.acpi(config.vcpus))?;
        self.platform.begin_generation()?;
        let (cpuid, msrs) = match &config.cpu_template {
            None => (cpuid::restorable(&cpuid::supported(&self.shell.kvm)?), &[][..]),
            Some(template) => (template::leaves(&self.shell.kvm, template)?, &template.msrs[..]),
        };
        let topology = cpuid::Topology { vcpus: config.vcpus, smt: config.smt };
        for (id, thread) in (0..).zip(&self.shell.vcpus) {
            lock(&thread.vcpu).prepare_boot(&cpuid::for_vcpu(&cpuid, id, topology), msrs)?;
        }
        match self.shell.vcpus.first() {
            Some(boot_vcpu) => lock(&boot_vcpu.vcpu).set_entry(&entry),
            None => Err(Error::config("vcpus", "a machine without a vCPU cannot boot")),
        }
    }

    /// Chooses how restores and rewinds treat the time since the snapshot.
    pub(crate) fn set_clock_mode(&mut self, mode: ClockMode) {
        self.clock.set_mode(mode);
    }

    /// Checks that [`Machine::rewind`] can reset every disk.
    ///
    /// # Errors
    /// [`Error::Config`] names a disk that cannot be reset.
    pub(crate) fn check_rewind(&self) -> Result<()> {
        self.platform.disks().values().try_for_each(|disk| lock(disk).check_rewind())
    }

    /// Restores a halted machine in place to `state`, with empty disk layers. Its memory has been reset.
    ///
    /// # Errors
    /// Returns an error if the host refuses. The machine is partly restored then.
    pub(crate) fn rewind(&mut self, state: &MachineState) -> Result<()> {
        self.platform.disks().values().try_for_each(|disk| lock(disk).rewind())?;
        self.restore(state)
    }

    /// Ends the guest, because an act on the machine failed midway.
    pub(crate) fn end_after_failure(&self, act: &str, error: &Error) {
        self.shell.control.end(Err(format!("could not {act}: {}", report(error))));
    }

    /// Halts the devices of an ended guest, removes their sockets, and writes its data to the files of its
    /// disks. Failures are only logged, because no caller can act on them. The caller
    /// releases devices that wait for guest memory.
    pub(crate) fn settle(&self) {
        self.platform.halt();
        self.platform.remove_sockets();
        for disk in self.platform.disks().values() {
            if let Err(error) = lock(disk).settle() {
                log::error!("{}", report(&error));
            }
        }
    }

    /// Ends the VM if a thread that must halt stays blocked on a page fault. Holds until the result is
    /// dropped. `for_disks` is the time that disks have to finish their requests before the halt.
    ///
    /// # Errors
    /// Returns an error if the host has no thread left.
    pub(crate) fn halt_in_time(&self, for_disks: Duration) -> Result<Option<FaultDeadline>> {
        let why = "a thread waited 10 s for a page of guest memory while the VM was to be paused";
        let patience = HALT_LIMIT.saturating_add(for_disks);
        // A service that watches its pages ends the VM itself.
        let faults = self.shell.ram.faults().filter(|faults| faults.handler().patience().is_none());
        faults.map(|faults| faults.let_go_after(patience, why)).transpose()
    }

    pub(crate) fn platform(&self) -> &Platform {
        &self.platform
    }

    pub(crate) fn shell(&self) -> &Shell {
        &self.shell
    }

    /// Returns the first vCPU, if it waits for a lent thread.
    pub(crate) fn lent_vcpu(&self) -> Option<LentVcpu> {
        self.shell
            .vcpus
            .first()
            .and_then(|first| first.without_thread(&self.shell.control, &self.shell.board))
    }

    /// Returns the first vCPU. Its thread locks it while it runs.
    pub(crate) fn first_vcpu(&self) -> Arc<Mutex<Vcpu>> {
        Arc::clone(&self.shell.vcpus[0].vcpu)
    }

    /// Tells the guest's watchdogs that it was paused. Called before it resumes.
    pub(crate) fn notify_paused(&self) -> Result<()> {
        self.shell.vcpus.iter().try_for_each(|thread| lock(&thread.vcpu).notify_paused())
    }

    /// Helps the guest take in a jump of its clocks at the restore before this start, if there was one.
    pub(crate) fn follow_jump(&mut self) {
        let skipped = std::mem::take(&mut self.skipped);
        if skipped < jump::LEAST {
            return;
        }
        let vcpus = self.shell.vcpus.iter().map(|thread| Arc::downgrade(&thread.vcpu)).collect();
        if let Err(error) = jump::follow(Arc::clone(&self.shell.control), vcpus) {
            log::warn!("the guest may report stalls after its clocks jumped: {}", report(&error));
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let Some(faults) = self.shell.ram.faults() else { return };
        match faults.let_go_after(DROP_LIMIT, "the VM was dropped while a thread waited for guest memory") {
            Ok(let_go) => self.let_go = Some(let_go),
            Err(error) => log::warn!("{}", report(&error)),
        }
    }
}

impl Persist for Machine {
    type State = MachineState;

    /// Saves a machine whose vCPUs are parked.
    fn save(&self) -> Result<MachineState> {
        let Self { platform, irqchip, clock, skipped: _, shell, let_go: _ } = self;
        Ok(MachineState {
            vcpus: shell.vcpus.iter().map(|thread| lock(&thread.vcpu).save()).collect::<Result<_>>()?,
            irqchip: irqchip.save()?,
            clock: clock.save()?,
            devices: platform.save()?,
        })
    }

    /// Restores the clock first, because the TSCs follow it. Restores the devices last, because a device may
    /// send an interrupt again.
    fn restore(&mut self, state: &MachineState) -> Result<()> {
        let MachineState { vcpus, irqchip, clock, devices } = state;
        if vcpus.len() != self.shell.vcpus.len() {
            let problem = format!(
                "the state has {} vCPUs, but the machine has {}",
                vcpus.len(),
                self.shell.vcpus.len()
            );
            return Err(Error::config("vcpus", problem));
        }
        self.skipped = self.clock.begin_restore(clock)?;
        self.clock.restore(clock)?;
        let moved = self.clock.moved(clock)?;
        step_done("clock");
        self.shell.restore_vcpus(vcpus, moved)?;
        step_done("vCPU state");
        self.irqchip.restore(irqchip)?;
        step_done("irqchip");
        self.platform.restore(devices)
    }
}
