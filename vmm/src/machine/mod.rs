//! The machine: a shell, with memory mapped over it and devices on its buses. The only constructor there is; boot and
//! restore differ in what they do next.
//!
//! ```text
//! cold boot:  Backing::Fresh.map(ram)    Machine::new(shell, devices)  then boot()
//! restore:    Backing::Private.map(ram)  Machine::new(shell, devices)  then Persist::restore()
//! ```

pub(crate) mod balloon;
pub(crate) mod board;
pub(crate) mod pool;
pub(crate) mod running;
pub(crate) mod shell;
pub(crate) mod vcpu_thread;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use volt_kernel::{NamedFile, Payload};

use crate::config::{Devices, FileRef, VmConfig};
use crate::console::Console;
use crate::devices::platform::{Buses, Platform};
use crate::devices::virtio_slots;
use crate::error::{Error, Result, report};
use crate::kvm::clock::{Clock, ClockState};
use crate::kvm::cpuid;
use crate::kvm::irqchip::{Irqchip, IrqchipState};
use crate::kvm::vcpu::VcpuState;
use crate::machine::board::Board;
use crate::machine::shell::Shell;
pub(crate) use crate::machine::vcpu_thread::LentVcpu;
use crate::memory::lazy::faults::FaultDeadline;
use crate::persist::{Blob, Persist};
use crate::sync::lock;
use crate::timing::step_done;

/// A whole machine. Half restored, it must be dropped and never run.
#[derive(Debug)]
pub struct Machine {
    // Volatile: each is a part of the state.
    platform: Platform,
    irqchip: Irqchip,
    clock: Clock,
    // Everything above lives on it.
    shell: Shell,
    /// While it is dropped, where its threads may wait for memory: those are let go then.
    let_go: Option<FaultDeadline>,
}

/// How long that may take where they wait for memory.
const TO_BE_DROPPED: Duration = Duration::from_secs(2);
/// How long a pause waits for a thread that waits for memory: the VM ends then.
const TO_HALT: Duration = Duration::from_secs(10);

/// The state of a machine, apart from its memory.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineState {
    /// In the order of their ids.
    pub vcpus: Vec<VcpuState>,
    /// PICs, IOAPIC and PIT, where they are the kernel's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub irqchip: Option<IrqchipState>,
    /// kvmclock.
    pub clock: ClockState,
    /// By name.
    pub devices: BTreeMap<String, Blob>,
}

impl Machine {
    /// Puts the devices in. Something has been mapped over the shell's memory.
    ///
    /// # Errors
    /// What a device is made from cannot be opened, or the host refuses.
    pub fn new(shell: Shell, devices: &Devices, console: Console) -> Result<Self> {
        let vm = (&shell.vm, shell.irqchip);
        let platform = Platform::new(vm, &shell.ram, &shell.control, console, devices)?;
        let Buses { ports, mmio, lines } = platform.buses();
        let (ram, control) = (shell.ram.clone(), Arc::clone(&shell.control));
        shell.board.put(Board { ports, mmio, lines, ram, control });
        let (irqchip, clock) = (Irqchip::of(&shell.vm, shell.irqchip), Clock::new(shell.vm.clone()));
        step_done("devices");
        Ok(Self { platform, irqchip, clock, shell, let_go: None })
    }

    /// Loads the kernel and puts the boot vCPU at its entry.
    ///
    /// # Errors
    /// The kernel or initrd cannot be read or does not fit, or KVM refuses a vCPU's registers.
    pub fn boot(&mut self, config: &VmConfig) -> Result<()> {
        let open = |file: &FileRef, what| -> Result<NamedFile> {
            Ok(NamedFile { name: file.to_string(), file: file.open(what)? })
        };
        let boot = &config.boot;
        let kernel = open(&boot.kernel, "open kernel")?;
        let initrd = boot.initrd.as_ref().map(|initrd| open(initrd, "open initrd")).transpose()?;
        let cmdline = boot.cmdline.clone() + &virtio_slots::cmdline(&config.devices);
        let payload = Payload { kernel: &kernel, initrd: initrd.as_ref(), cmdline: &cmdline };
        let entry = volt_kernel::load(self.shell.ram.guest(), &payload, &self.platform.acpi(config.vcpus))?;
        let shown = cpuid::carried(&cpuid::supported(&self.shell.kvm)?);
        for (id, thread) in (0..).zip(&self.shell.vcpus) {
            lock(&thread.vcpu).prepare_boot(&cpuid::for_vcpu(&shown, id, config.vcpus))?;
        }
        match self.shell.vcpus.first() {
            Some(boot_vcpu) => lock(&boot_vcpu.vcpu).set_entry(&entry),
            None => Err(Error::config("vcpus", "a machine without a vCPU cannot boot")),
        }
    }

    /// Whether [`Machine::rewind`] would go back in everything.
    ///
    /// # Errors
    /// [`Error::Config`] names what would stay as it is.
    pub(crate) fn check_rewind(&self) -> Result<()> {
        self.platform.disks().values().try_for_each(|disk| lock(disk).check_rewind())
    }

    /// Restores it once more, in place, halted, to the state in which its disks' layers were empty. Memory has been put back.
    ///
    /// # Errors
    /// The host refuses. The machine is half restored.
    pub(crate) fn rewind(&mut self, state: &MachineState) -> Result<()> {
        self.platform.disks().values().try_for_each(|disk| lock(disk).rewind())?;
        self.restore(state)
    }

    /// Ends the guest, because an act on the machine failed midway.
    pub(crate) fn give_up(&self, act: &str, error: &Error) {
        self.shell.control.end(Err(format!("could not {act}: {}", report(error))));
    }

    /// Halts the devices of a VM whose guest has ended, and brings what it wrote into the files of its disks. What cannot be is told
    /// in the log: there is nobody left who could do something about it.
    pub(crate) fn settle(&self) {
        let why = "it ended while a device waited for memory";
        let faults = self.shell.ram.faults();
        let let_go = faults.map(|faults| faults.let_go_after(TO_BE_DROPPED, why)).transpose();
        let _let_go = let_go.inspect_err(|error| log::warn!("{}", report(error)));
        self.platform.halt();
        for disk in self.platform.disks().values() {
            if let Err(error) = lock(disk).settle() {
                log::error!("{}", report(&error));
            }
        }
    }

    /// Ends the VM if a thread that is to halt stays blocked on a page fault, for as long as the result
    /// lives. `for_disks` is the time that disks have to finish their requests before the halt.
    ///
    /// # Errors
    /// The host has no thread left.
    pub(crate) fn halt_in_time(&self, for_disks: Duration) -> Result<Option<FaultDeadline>> {
        let why = "waited for a page of memory for 10 s while it was to be paused";
        let patience = TO_HALT.saturating_add(for_disks);
        self.shell.ram.faults().map(|faults| faults.let_go_after(patience, why)).transpose()
    }

    pub(crate) fn platform(&self) -> &Platform {
        &self.platform
    }

    pub(crate) fn shell(&self) -> &Shell {
        &self.shell
    }

    /// The first vCPU, where it was made to wait for a lent thread.
    pub(crate) fn lent_vcpu(&self) -> Option<LentVcpu> {
        self.shell
            .vcpus
            .first()
            .and_then(|first| first.without_thread(&self.shell.control, &self.shell.board))
    }

    /// Tells the guest that it was not running, before it is let go on.
    pub(crate) fn notify_paused(&self) -> Result<()> {
        self.shell.vcpus.iter().try_for_each(|thread| lock(&thread.vcpu).notify_paused())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let Some(faults) = self.shell.ram.faults() else { return };
        match faults.let_go_after(TO_BE_DROPPED, "it was dropped while it waited for memory") {
            Ok(let_go) => self.let_go = Some(let_go),
            Err(error) => log::warn!("{}", crate::error::report(&error)),
        }
    }
}

impl Persist for Machine {
    type State = MachineState;

    /// The vCPUs must be parked.
    fn save(&self) -> Result<MachineState> {
        let Self { platform, irqchip, clock, shell, let_go: _ } = self;
        Ok(MachineState {
            vcpus: shell.vcpus.iter().map(|thread| lock(&thread.vcpu).save()).collect::<Result<_>>()?,
            irqchip: irqchip.save()?,
            clock: clock.save()?,
            devices: platform.save()?,
        })
    }

    /// All vCPUs first; devices last, so that an interrupt one of them sends again finds its way.
    fn restore(&mut self, state: &MachineState) -> Result<()> {
        let MachineState { vcpus, irqchip, clock, devices } = state;
        if vcpus.len() != self.shell.vcpus.len() {
            let problem =
                format!("state of {} vCPUs for a machine with {}", vcpus.len(), self.shell.vcpus.len());
            return Err(Error::config("vcpus", problem));
        }
        self.shell.restore_vcpus(vcpus)?;
        step_done("vCPU state");
        self.irqchip.restore(irqchip)?;
        step_done("irqchip");
        self.clock.restore(clock)?;
        step_done("clock");
        self.platform.restore(devices)?;
        step_done("device state");
        Ok(())
    }
}
