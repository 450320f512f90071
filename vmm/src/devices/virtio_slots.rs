//! Slots of virtio devices: each has a page of addresses and an interrupt line.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::BusRange;
use super::lines::InterruptLines;
use super::virtio::VirtioDevice;
use super::virtio::balloon::Balloon;
use super::virtio::block::{Block, Gate};
use super::virtio::console::VirtioConsole;
use super::virtio::net::{self, Net};
use super::virtio::rng::Rng;
use super::virtio::transport;
use super::virtio::transport::Transport;
use super::virtio::view::View;
use super::virtio::vsock::Vsock;
use crate::config::devices::MAX_DEVICES;
use crate::config::metadata::MetadataConfig;
use crate::config::{Devices, MIB};
use crate::error::Result;
use crate::events::Events;
use crate::kvm::vm::VmHandle;
use crate::memory::ram::GuestRam;
use crate::timing::step_done;

/// The first slot, in the hole below 4 GiB.
const BASE: u64 = 0xd000_0000;
/// Lines of the IOAPIC that no device of a PC uses: without COM1's (4), the RTC's (8) and those below 4.
const LINES: [u32; MAX_DEVICES] = [5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21];

/// The balloon's name. A VM has one at most.
pub(crate) const BALLOON: &str = "balloon";

/// The name of a disk.
pub(crate) fn disk_name(id: &str) -> String {
    format!("disk-{id}")
}

/// A device in its slot.
#[derive(Debug)]
pub(super) struct Slot {
    /// Name in snapshots, which never changes.
    pub name: String,
    pub place: BusRange,
    pub transport: Arc<Mutex<Transport>>,
    /// The registers that need no lock of the transport.
    pub view: Arc<View>,
    pub device: Arc<Mutex<dyn VirtioDevice>>,
}

/// Devices by type and id, for acts of the host that a guest has no access to.
#[derive(Debug, Default)]
pub(super) struct Handles {
    pub disks: BTreeMap<String, Arc<Mutex<Block>>>,
    /// The disks with their gates.
    pub gates: Vec<(Arc<Gate>, Arc<Mutex<Block>>)>,
    pub networks: BTreeMap<String, Arc<Mutex<Net>>>,
    pub balloon: Option<Arc<Mutex<Balloon>>>,
    pub vsock: Option<Arc<Mutex<Vsock>>>,
    pub console: Option<Arc<Mutex<VirtioConsole>>>,
}

/// Makes the devices of a configuration and connects them to the VM, in the order in which the guest numbers
/// them.
///
/// # Errors
/// A device's file or socket cannot be opened, or KVM refuses.
pub(super) fn fill(
    devices: &Devices,
    ram: &GuestRam,
    (vm, lines): (&VmHandle, &InterruptLines),
    events: &Arc<Events>,
) -> Result<(Vec<Slot>, Handles)> {
    let mut handles = Handles::default();
    let named = make(devices, ram, &mut handles, events)?;
    let slots = named.into_iter().enumerate().map(|(number, (name, device))| {
        let place = place(number);
        let mut transport = Transport::new(&name, Arc::clone(&device), ram.clone())?;
        transport.report_to(events);
        transport.connect(lines.line(LINES[number]))?;
        vm.connect_notification(transport.notifications(), place.base + transport::NOTIFY)?;
        let view = transport.view();
        Ok(Slot { name, place, transport: Arc::new(Mutex::new(transport)), view, device })
    });
    Ok((slots.collect::<Result<_>>()?, handles))
}

/// Words of the kernel's command line that announce the devices to a kernel without ACPI (Linux,
/// Documentation/admin-guide/kernel-parameters.txt, `virtio_mmio.device`).
pub(crate) fn cmdline(devices: &Devices) -> String {
    let word = |number| {
        let BusRange { base, len, gsi } = place(number);
        format!("virtio_mmio.device={len:#x}@{base:#x}:{}", gsi.unwrap_or(0))
    };
    let count = if devices.on_cmdline { devices.count() } else { 0 };
    (0..count).map(word).collect::<Vec<_>>().join(" ")
}

fn place(number: usize) -> BusRange {
    BusRange { base: BASE + number as u64 * transport::LEN, len: transport::LEN, gsi: Some(LINES[number]) }
}

/// A device without a slot, and its name.
type Named = (String, Arc<Mutex<dyn VirtioDevice>>);

fn make(
    devices: &Devices,
    ram: &GuestRam,
    handles: &mut Handles,
    events: &Arc<Events>,
) -> Result<Vec<Named>> {
    let mut made: Vec<Named> = Vec::with_capacity(devices.count());
    for disk in &devices.disks {
        let block = if devices.allow_shared { Block::open_shared(disk) } else { Block::open(disk) }?;
        let gate = block.gate();
        let block = Arc::new(Mutex::new(block));
        handles.gates.push((gate, Arc::clone(&block)));
        handles.disks.insert(disk.id.clone(), Arc::clone(&block));
        made.push((disk_name(&disk.id), block as _));
        step_done("  disk");
    }
    let judge = devices
        .policy
        .as_ref()
        .filter(|_| !devices.networks.is_empty())
        .map(|policy| net::judge_of_start(policy, devices.networks.len()))
        .transpose()?;
    for network in &devices.networks {
        let mut net = Net::open(network)?;
        net.obey(network, judge.as_ref(), events);
        let serves = |metadata: &&MetadataConfig| metadata.networks.contains(&network.id);
        if let Some(metadata) = devices.metadata.as_ref().filter(serves) {
            net.serve_metadata(metadata);
        }
        let net = Arc::new(Mutex::new(net));
        handles.networks.insert(network.id.clone(), Arc::clone(&net));
        made.push((format!("net-{}", network.id), net as _));
        step_done("  network interface");
    }
    if let Some(vsock) = &devices.vsock {
        let vsock = Arc::new(Mutex::new(Vsock::open(vsock)?));
        handles.vsock = Some(Arc::clone(&vsock));
        made.push(("vsock".to_owned(), vsock as _));
        step_done("  vsock");
    }
    if devices.rng {
        made.push(("rng".to_owned(), Arc::new(Mutex::new(Rng::new(&devices.rng_limit)))));
    }
    if let Some(config) = &devices.balloon {
        let balloon = Arc::new(Mutex::new(Balloon::new(config, ram.len() / MIB)?));
        handles.balloon = Some(Arc::clone(&balloon));
        made.push((BALLOON.to_owned(), balloon as _));
        step_done("  rng, balloon");
    }
    if let Some(console) = &devices.console {
        let console = Arc::new(Mutex::new(VirtioConsole::open(console)?));
        handles.console = Some(Arc::clone(&console));
        made.push(("console".to_owned(), console as _));
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::devices::BalloonConfig;

    #[test]
    fn slots_are_apart_and_told_once() {
        let balloon = Some(BalloonConfig::default());
        let devices = Devices { rng: true, balloon, on_cmdline: true, ..Devices::default() };
        let first = "virtio_mmio.device=0x1000@0xd0000000:5";
        assert_eq!(cmdline(&devices), format!("{first} virtio_mmio.device=0x1000@0xd0001000:6"));
        assert_eq!(cmdline(&Devices { on_cmdline: false, ..devices }), "");
        assert_eq!(place(15), BusRange { base: 0xd000_f000, len: 0x1000, gsi: Some(21) });
    }
}
