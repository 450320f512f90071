//! Which devices a machine has, and where: the one table that boot, restore, save and ACPI read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use volt_kernel::Platform as AcpiPlatform;
use volt_kernel::layout::{IO_APIC, LOCAL_APIC};

use super::bus::Bus;
use super::i8042::{self, I8042};
use super::power::{self, Power};
use super::serial::Serial;
use super::{Place, SharedDevice};
use crate::console::Console;
use crate::control::Control;
use crate::cpu::Board;
use crate::error::{Error, Result};
use crate::kvm::vm::VmHandle;
use crate::memory::ram::GuestRam;
use crate::persist::{Blob, Persist};
use crate::sync::lock;

const COM1: Place = Place { base: 0x3f8, len: 8, gsi: Some(4) };
/// Port 0x61 in between is the PIT's gate, which the kernel answers for.
const I8042: Place = Place { base: 0x60, len: 5, gsi: None };
const POWER: Place = Place { base: 0x600, len: 2, gsi: None };

/// A machine's devices.
#[derive(Debug)]
pub struct Platform {
    /// By name: the names are those of the snapshot, and stay what they are.
    ports: BTreeMap<&'static str, (Place, SharedDevice)>,
    /// The serial port once more, for typing into it.
    pub(crate) serial: Arc<Mutex<Serial>>,
}

impl Platform {
    /// The devices of a new machine.
    pub(crate) fn new(vm: &VmHandle, control: &Arc<Control>, console: Console) -> Self {
        let gsi = COM1.gsi.expect("COM1 interrupts");
        let serial = Arc::new(Mutex::new(Serial::new(vm.clone(), gsi, console, Arc::clone(control))));
        let ports: [(_, (_, SharedDevice)); 3] = [
            ("com1", (COM1, Arc::clone(&serial) as _)),
            ("i8042", (I8042, Arc::new(Mutex::new(I8042::new(Arc::clone(control)))))),
            ("power", (POWER, Arc::new(Mutex::new(Power::new(Arc::clone(control)))))),
        ];
        Self { ports: ports.into(), serial }
    }

    /// What the vCPUs run on.
    pub(crate) fn board(&self, ram: &GuestRam, control: &Arc<Control>) -> Board {
        let mut ports = Bus::default();
        for (place, device) in self.ports.values() {
            ports.insert(place.base, place.len, Arc::clone(device) as _);
        }
        Board { ports, mmio: Bus::default(), ram: ram.clone(), control: Arc::clone(control) }
    }

    /// What the guest is told of it all.
    pub(crate) fn acpi(&self, vcpus: u8) -> AcpiPlatform {
        let port = |place: Place, offset| (place.base + offset) as u16;
        AcpiPlatform {
            vcpus,
            local_apic: LOCAL_APIC as u32,
            io_apic: IO_APIC as u32,
            sleep_control_port: port(POWER, power::CONTROL_OFFSET),
            sleep_status_port: port(POWER, power::STATUS_OFFSET),
            reset_port: port(I8042, i8042::COMMAND_OFFSET),
            reset_value: i8042::COMMAND_RESET,
            device_aml: self.ports.values().map(|(place, device)| lock(device).aml(place)).collect(),
        }
    }
}

impl Persist for Platform {
    type State = BTreeMap<String, Blob>;

    fn save(&self) -> Result<Self::State> {
        let Self { ports, serial: _ } = self;
        let save = |(&name, (_, device)): (&&'static str, &(Place, SharedDevice))| {
            Ok((name.to_owned(), lock(device).save_blob(name)?))
        };
        ports.iter().map(save).collect()
    }

    /// Every device must find its state, and every state its device.
    fn restore(&mut self, states: &Self::State) -> Result<()> {
        for (&name, (_, device)) in &self.ports {
            let state = states.get(name).ok_or_else(|| {
                Error::config("devices", format!("no state of {name}, which this machine has"))
            })?;
            lock(device).restore_blob(name, state)?;
        }
        match states.keys().find(|name| !self.ports.contains_key(name.as_str())) {
            Some(name) => {
                Err(Error::config("devices", format!("state of {name}, which this machine has not")))
            }
            None => Ok(()),
        }
    }
}
