//! The devices of a machine and their addresses: the one table that boot, restore, save and ACPI read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use volt_kernel::Platform as AcpiPlatform;
use volt_kernel::layout::{IO_APIC, LOCAL_APIC, MMIO_HOLE_START};

use super::boot_timer::BootTimer;
use super::bus::Bus;
use super::generation;
use super::generation::Generation;
use super::i8042;
use super::i8042::I8042;
use super::idle_watcher::IdleWatcher;
use super::ioapic;
use super::lines::InterruptLines;
use super::power;
use super::power::Power;
use super::serial::{Room, Serial};
use super::starter_requests::{StarterRequests, VcpuView};
use super::virtio::balloon::Balloon;
use super::virtio::block::{Block, ClosedGates};
use super::virtio::net::Net;
use super::virtio::vsock::Vsock;
use super::virtio_slots;
use super::virtio_slots::{Handles, Slot};
use super::work::DeviceWork;
use super::{BusRange, SharedDevice};
use crate::config::{IrqchipKind, VmConfig};
use crate::console::Console;
use crate::error::{Error, Result};
use crate::kvm::vm::VmHandle;
use crate::memory::ram::GuestRam;
use crate::persist::{Blob, Persist, PersistBlob};
use crate::run_control::Control;
use crate::sync::lock;
use crate::timing::step_done;

const COM1: BusRange = BusRange { base: 0x3f8, len: 8, gsi: Some(4) };
/// Port 0x61 in the middle is the PIT's gate. The kernel answers it on machines with a PIT.
const I8042: BusRange = BusRange { base: 0x60, len: 5, gsi: Some(1) };
const IOAPIC: BusRange = BusRange { base: IO_APIC, len: ioapic::LEN, gsi: None };
/// Firecracker's place for it.
const BOOT_TIMER: BusRange = BusRange { base: MMIO_HOLE_START, len: 0x1000, gsi: None };
const POWER: BusRange = BusRange { base: 0x600, len: 3, gsi: Some(23) };
/// The line of the generation device, after those of `virtio_slots` and before that of the power button.
const GENERATION_GSI: u32 = 22;

/// A machine's devices.
#[derive(Debug)]
pub struct Platform {
    /// Devices at guest physical addresses that are no virtio devices: the boot timer and our IOAPIC, if the
    /// machine has them, by name. Names are those of the snapshot and never change.
    fixed: BTreeMap<String, (BusRange, SharedDevice)>,
    /// Devices at ports.
    ports: BTreeMap<String, (BusRange, SharedDevice)>,
    /// Devices at guest physical addresses, with those of `virtio`.
    mmio: BTreeMap<String, (BusRange, SharedDevice)>,
    /// The serial port, for typing into it.
    pub(crate) serial: Arc<Mutex<Serial>>,
    /// The serial port's counters.
    serial_room: Arc<Room>,
    /// The keyboard.
    keyboard: Arc<Mutex<I8042>>,
    /// The power button.
    power: Arc<Mutex<Power>>,
    /// The generation device, which has no registers.
    generation: Option<Generation>,
    lines: InterruptLines,
    /// Virtio devices, which have threads to start and stop.
    virtio: Vec<Slot>,
    /// Virtio devices by their type.
    handles: Handles,
    /// Watches idle devices after a restore or a pause.
    idle_watcher: Mutex<Option<IdleWatcher>>,
    /// Register writes that vCPUs leave to that thread.
    requests: Arc<StarterRequests>,
    /// Whether the kernel finds `mmio` by its command line and not through ACPI.
    mmio_on_cmdline: bool,
}

/// The devices that answer a vCPU's exits.
#[derive(Debug)]
pub(crate) struct Buses {
    /// Devices at ports.
    pub ports: Bus,
    /// Devices at guest physical addresses.
    pub mmio: Bus,
    /// Interrupt lines.
    pub lines: InterruptLines,
}

/// Makes the devices at guest physical addresses that are no virtio devices.
fn fixed(lines: &InterruptLines, config: &VmConfig) -> BTreeMap<String, (BusRange, SharedDevice)> {
    let ioapic = match lines {
        InterruptLines::Kernel(_) => None,
        InterruptLines::Split(ours) => Some(("ioapic", (IOAPIC, Arc::clone(ours) as SharedDevice))),
    };
    let timer = || ("boot-timer", (BOOT_TIMER, Arc::new(Mutex::new(BootTimer::start())) as SharedDevice));
    let timer = config.boot_timer.then(timer);
    ioapic.into_iter().chain(timer).map(|(name, device)| (name.to_owned(), device)).collect()
}

impl Platform {
    /// Makes the devices of a new machine.
    ///
    /// # Errors
    /// A device's file or socket cannot be opened, or KVM refuses.
    pub(crate) fn new(
        (vm, irqchip): (&VmHandle, IrqchipKind),
        ram: &GuestRam,
        control: &Arc<Control>,
        console: Console,
        config: &VmConfig,
    ) -> Result<Self> {
        let devices = &config.devices;
        let lines = InterruptLines::of(vm, irqchip);
        let fixed = fixed(&lines, config);
        let line = lines.line(COM1.gsi.expect("COM1 interrupts"));
        let serial = Serial::new(line, console, Arc::clone(control));
        let (serial_room, serial) = (Arc::clone(serial.room()), Arc::new(Mutex::new(serial)));
        let button = lines.line(POWER.gsi.expect("the button interrupts"));
        let power = Arc::new(Mutex::new(Power::new(Arc::clone(control), button)));
        let line = lines.line(I8042.gsi.expect("the keyboard interrupts"));
        let keyboard = Arc::new(Mutex::new(I8042::new(Arc::clone(control), line)));
        let ports: [(_, (_, SharedDevice)); 3] = [
            ("com1", (COM1, Arc::clone(&serial) as _)),
            ("i8042", (I8042, Arc::clone(&keyboard) as _)),
            ("power", (POWER, Arc::clone(&power) as _)),
        ];
        let generation = config.vmgenid.then(|| Generation::new(ram, lines.line(GENERATION_GSI)));
        let (virtio, handles) = virtio_slots::fill(devices, ram, (vm, &lines), control.events())?;
        let mmio = virtio
            .iter()
            .map(|slot| (slot.name.clone(), (slot.place, Arc::clone(&slot.transport) as SharedDevice)));
        Ok(Self {
            fixed,
            lines,
            ports: ports.map(|(name, at)| (name.to_owned(), at)).into(),
            mmio: mmio.collect(),
            serial,
            serial_room,
            keyboard,
            power,
            generation,
            virtio,
            handles,
            idle_watcher: Mutex::default(),
            requests: Arc::default(),
            mmio_on_cmdline: devices.on_cmdline,
        })
    }

    /// Asks the guest to end: by Ctrl-Alt-Del if it drives the keyboard, otherwise by the power button.
    ///
    /// # Errors
    /// KVM refuses the interrupt.
    pub(crate) fn request_end(&self) -> Result<()> {
        let pressed = lock(&self.keyboard).press_ctrl_alt_del()?;
        if pressed { Ok(()) } else { lock(&self.power).press() }
    }

    /// Writes the first generation of a VM that boots.
    ///
    /// # Errors
    /// As [`Generation::begin`].
    pub(crate) fn begin_generation(&mut self) -> Result<()> {
        self.generation.as_mut().map_or(Ok(()), Generation::begin)
    }

    /// Resumes the devices that the guest has started, soon and on other threads, and serves the requests of
    /// vCPUs to start others.
    ///
    /// # Errors
    /// The host has no thread left.
    pub(crate) fn resume(&self, control: &Arc<Control>) -> Result<()> {
        let mut watcher = lock(&self.idle_watcher);
        if watcher.is_none() && !self.virtio.is_empty() {
            let transports = self.virtio.iter().map(|slot| Arc::clone(&slot.transport)).collect();
            *watcher = Some(IdleWatcher::start(transports, &self.requests, Arc::clone(control))?);
        }
        Ok(())
    }

    /// Keeps the disks from taking requests until the result is dropped, and waits for requests in flight.
    /// Drop the result after a halt.
    ///
    /// Without `longest`, this waits a second at most, and the halt waits for the rest. With `longest`, the
    /// disks have that time; `None` is returned if they take longer, and they continue.
    pub(crate) fn close_gates(&self, longest: Option<Duration>) -> Option<ClosedGates> {
        let closed = ClosedGates::within(&self.handles.gates, longest);
        if closed.is_none() {
            self.wake_disks();
        }
        closed
    }

    /// Lets the disks take requests again if no halt followed.
    pub(crate) fn open_gates(&self, closed: ClosedGates) {
        drop(closed);
        self.wake_disks();
    }

    /// Wakes the disks, which may have missed notifications while their gates were closed.
    fn wake_disks(&self) {
        self.disks().keys().for_each(|id| self.wake(&virtio_slots::disk_name(id)));
    }

    /// Stops the devices' threads: afterwards no device changes. The vCPUs are parked.
    pub(crate) fn halt(&self) {
        drop(lock(&self.idle_watcher).take());
        self.virtio.iter().for_each(|slot| lock(&slot.transport).halt());
    }

    /// The counters of the devices.
    pub(crate) fn counters(&self) -> DeviceWork {
        DeviceWork {
            virtio: self.virtio.iter().map(|slot| (slot.name.clone(), Arc::clone(&slot.view))).collect(),
            serial: Arc::clone(&self.serial_room),
            keyboard: Arc::clone(&self.keyboard),
        }
    }

    /// The disks by their ids.
    pub(crate) fn disks(&self) -> &BTreeMap<String, Arc<Mutex<Block>>> {
        &self.handles.disks
    }

    /// The network interfaces by their ids.
    pub(crate) fn networks(&self) -> &BTreeMap<String, Arc<Mutex<Net>>> {
        &self.handles.networks
    }

    /// The balloon, if the VM has one.
    pub(crate) fn balloon(&self) -> Option<&Arc<Mutex<Balloon>>> {
        self.handles.balloon.as_ref()
    }

    /// Removes the files of the devices' sockets. The guest has ended, but its process may end without a drop
    /// of its devices.
    pub(crate) fn remove_sockets(&self) {
        if let Some(vsock) = &self.handles.vsock {
            lock(vsock).remove_socket();
        }
        if let Some(console) = &self.handles.console {
            lock(console).remove_socket();
        }
    }

    /// Calls `act` when the guest has written a whole line to its serial port or its virtio console, perhaps
    /// for both at once.
    pub(crate) fn at_line(&self, act: impl Fn() + Clone + Send + 'static) {
        if let Some(console) = &self.handles.console {
            lock(console).at_line(act.clone());
        }
        lock(&self.serial).at_line(act);
    }

    /// Calls `act` when a vsock connection is established. Returns false if the VM has no vsock.
    pub(crate) fn at_connection(&self, act: impl FnOnce() + Send + 'static) -> bool {
        self.handles.vsock.as_ref().map(|vsock| lock(vsock).at_connection(act)).is_some()
    }

    /// Calls `act` when the first of the vsock connections has ended that host programs make from now on.
    /// Returns false if the VM has no vsock.
    pub(crate) fn at_end_of_connection(&self, act: impl FnOnce() + Send + 'static) -> bool {
        self.handles.vsock.as_ref().map(|vsock| lock(vsock).at_end_of_connection(act)).is_some()
    }

    /// The vsock device, if the VM has one.
    pub(crate) fn vsock(&self) -> Option<&Arc<Mutex<Vsock>>> {
        self.handles.vsock.as_ref()
    }

    /// Tells the driver of a virtio device that the device's configuration changed.
    pub(crate) fn configuration_changed(&self, name: &str) {
        if let Some(slot) = self.slot(name) {
            slot.view.config_changed(&*lock(&slot.device));
        }
    }

    /// Makes a virtio device look at its queues, as after a notification of its driver.
    pub(crate) fn wake(&self, name: &str) {
        if let Some(slot) = self.slot(name) {
            let _ = lock(&slot.transport).notifications().write(1); // fails only when it is woken anyway
        }
    }

    /// Lets each virtio device do all its work on this thread.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn work(&self, memory: &crate::memory::own_writes::GuestMemory) {
        self.virtio.iter().for_each(|slot| super::virtio::fuzzing::work(&lock(&slot.transport), memory));
    }

    fn slot(&self, name: &str) -> Option<&Slot> {
        self.virtio.iter().find(|slot| slot.name == name)
    }

    /// The buses with all devices.
    pub(crate) fn buses(&self) -> Buses {
        let bus = |devices: &[&BTreeMap<String, (BusRange, SharedDevice)>]| {
            let mut bus = Bus::default();
            for (place, device) in devices.iter().flat_map(|devices| devices.values()) {
                bus.insert(place.base, place.len, Arc::clone(device) as _);
            }
            bus
        };
        let mut mmio = bus(&[&self.fixed]);
        for (device, Slot { place, transport, view, .. }) in self.virtio.iter().enumerate() {
            let (view, requests) = (Arc::clone(view), Arc::clone(&self.requests));
            let view = Arc::new(VcpuView { view, requests, device });
            mmio.insert_with_view(place.base, place.len, Arc::clone(transport) as _, view);
        }
        Buses { ports: bus(&[&self.ports]), mmio, lines: self.lines.clone() }
    }

    /// The description of the machine for ACPI.
    pub(crate) fn acpi(&self, vcpus: u8) -> AcpiPlatform {
        let port = |place: BusRange, offset| (place.base + offset) as u16;
        AcpiPlatform {
            vcpus,
            local_apic: LOCAL_APIC as u32,
            io_apic: IO_APIC as u32,
            sleep_control_port: port(POWER, power::CONTROL_OFFSET),
            sleep_status_port: port(POWER, power::STATUS_OFFSET),
            reset_port: port(I8042, i8042::COMMAND_OFFSET),
            reset_value: i8042::COMMAND_RESET,
            device_aml: self
                .ports
                .values()
                .chain(self.mmio.values().filter(|_| !self.mmio_on_cmdline))
                .map(|(place, device)| lock(device).aml(place))
                .chain(self.generation.as_ref().map(|_| Generation::aml(GENERATION_GSI)))
                .collect(),
        }
    }
}

impl Persist for Platform {
    type State = BTreeMap<String, Blob>;

    fn save(&self) -> Result<Self::State> {
        let Self {
            fixed,
            ports,
            mmio,
            lines: _,
            serial: _,
            serial_room: _,
            keyboard: _,
            power: _,
            generation,
            virtio: _,
            handles: _,
            idle_watcher: _,
            requests: _,
            mmio_on_cmdline: _,
        } = self;
        let save = |(name, (_, device)): (&String, &(BusRange, SharedDevice))| {
            Ok((name.clone(), lock(device).save_blob(name)?))
        };
        let generation = generation.iter().map(|device| {
            let name = generation::NAME;
            Ok((name.to_owned(), device.save_blob(name)?))
        });
        fixed.iter().chain(ports).chain(mmio).map(save).chain(generation).collect()
    }

    /// Fails unless each device has a state and each state a device. The IOAPIC is restored first, because
    /// other devices may interrupt again.
    fn restore(&mut self, states: &Self::State) -> Result<()> {
        let all = [&self.fixed, &self.ports, &self.mmio];
        let state_of = |name: &str| {
            let state = states.get(name);
            state.ok_or_else(|| Error::config("devices", format!("the state of {name} is missing")))
        };
        for (name, (_, device)) in all.into_iter().flatten() {
            lock(device).restore_blob(name, state_of(name)?)?;
        }
        step_done("device state");
        if let Some(generation) = &mut self.generation {
            generation.restore_blob(generation::NAME, state_of(generation::NAME)?)?;
            step_done("generation");
        }
        let known = |name: &str| {
            all.iter().any(|devices| devices.contains_key(name))
                || self.generation.is_some() && name == generation::NAME
        };
        match states.keys().find(|name| !known(name)) {
            Some(name) => {
                Err(Error::config("devices", format!("the state names {name}, which this machine lacks")))
            }
            None => Ok(()),
        }
    }
}
