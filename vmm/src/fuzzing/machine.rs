//! A whole small machine on real KVM, whose vCPU never runs: the caller makes the accesses that a guest would
//! make.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde_json::value::RawValue;
use vm_memory::{Bytes, GuestAddress};

use crate::config::devices::{BalloonConfig, ConsoleConfig};
use crate::config::{Devices, IrqchipKind, VmConfig};
use crate::console::Console;
use crate::devices::platform::{Buses, Platform};
use crate::devices::serial::Serial;
use crate::devices::virtio::fuzzing;
use crate::error::{Error, Result};
use crate::machine::shell::{FirstVcpu, Shell, VmShape};
use crate::memory::backing::Backing;
use crate::memory::ram::GuestRam;
use crate::persist::Persist;
use crate::run_control::RunState;

/// Bytes of guest memory.
pub const MEMORY: u64 = 1 << 20;

/// The state of the machine's devices, by name, as JSON.
pub type States = BTreeMap<String, String>;

/// A machine with a serial port, a keyboard controller, power registers, a random device, a balloon and a
/// console.
pub struct SmallMachine {
    buses: Buses,
    platform: Platform,
    shell: Shell,
}

impl fmt::Debug for SmallMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmallMachine").field("buses", &self.buses).finish_non_exhaustive()
    }
}

impl SmallMachine {
    /// Makes a machine. Its console listens at `socket`.
    ///
    /// # Errors
    /// The host has no KVM, or refuses a resource.
    pub fn new(irqchip: IrqchipKind, socket: &Path) -> Result<Self> {
        fuzzing::drive();
        let ram = GuestRam::reserve(MEMORY)?;
        Backing::Fresh.map(&ram)?;
        let shape = VmShape::new(MEMORY, 1).irqchip(irqchip);
        let shell = Shell::new(ram, shape, FirstVcpu::LentThread)?;
        let balloon = BalloonConfig {
            target_mib: 0,
            deflate_on_oom: true,
            statistics_interval: 0,
            reporting: true,
            hinting: true,
        };
        let console = Some(ConsoleConfig { socket: socket.to_owned().into() });
        let devices = Devices { rng: true, balloon: Some(balloon), console, ..Devices::default() };
        let config = VmConfig { devices, ..VmConfig::new("") };
        let vm = (&shell.vm, shell.irqchip);
        let platform = Platform::new(vm, &shell.ram, &shell.control, Console::discard(), &config)?;
        shell.control.start();
        Ok(Self { buses: platform.buses(), platform, shell })
    }

    /// Reads a port.
    pub fn read_port(&self, port: u16, data: &mut [u8]) {
        self.buses.ports.read(port.into(), data);
        self.work();
    }

    /// Writes a port.
    pub fn write_port(&self, port: u16, data: &[u8]) {
        self.buses.ports.write(port.into(), data);
        self.work();
    }

    /// Reads memory that is not RAM.
    pub fn read_mmio(&self, address: u64, data: &mut [u8]) {
        self.buses.mmio.read(address, data);
        self.work();
    }

    /// Writes memory that is not RAM.
    pub fn write_mmio(&self, address: u64, data: &[u8]) {
        self.buses.mmio.write(address, data);
        self.work();
    }

    /// Reports the end of an interrupt.
    pub fn end_interrupt(&self, vector: u8) {
        self.buses.lines.end_of_interrupt(vector);
    }

    /// Writes RAM, as far as it exists at `address`.
    pub fn poke(&self, address: u64, bytes: &[u8]) {
        let _ = self.shell.ram.guest().write(bytes, GuestAddress(address));
    }

    /// Types into the serial port, as much as fits.
    pub fn type_in(&self, bytes: &[u8]) {
        let fits = Serial::fifo_room(&self.platform.serial).min(bytes.len());
        Serial::type_in(&self.platform.serial, &bytes[..fits]).expect("the line exists");
        self.work();
    }

    /// Whether the guest has switched the machine off or asked for a reset.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.shell.control.state() == RunState::Ended
    }

    /// Halts the machine and saves the state of its devices.
    ///
    /// # Errors
    /// A device cannot be saved.
    pub fn save(&self) -> Result<States> {
        self.platform.halt();
        let states = self.platform.save()?;
        Ok(states.into_iter().map(|(name, state)| (name, state.get().to_owned())).collect())
    }

    /// Restores the state of devices into a new machine.
    ///
    /// # Errors
    /// A device refuses its state. The machine must be dropped then.
    pub fn restore(&mut self, states: &States) -> Result<()> {
        let blob = |(name, state): (&String, &String)| {
            let blob = RawValue::from_string(state.clone()).map_err(|source| Error::state(name, source));
            Ok((name.clone(), blob?))
        };
        self.platform.restore(&states.iter().map(blob).collect::<Result<_>>()?)
    }

    fn work(&self) {
        self.platform.work(self.shell.ram.guest());
    }
}
