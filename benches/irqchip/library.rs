//! Acts of a library user: a restore of a snapshot, and the drop of its VM.

use std::fmt;
use std::fs::File;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use volt_benches::first_byte::FirstByte;
use volt_benches::scratch::Scratch;
use volt_benches::stats::Times;
use volt_benches::{OrSay, Result, programs};
use volt_vmm::config::devices::DiskConfig;
use volt_vmm::{Console, IrqchipKind, RestoreOptions, Snapshot, Store, Vm, VmConfig};

use crate::rivals::{BOTH, Rivals};

/// Devices of a VM that has many.
const MANY_DEVICES: usize = 5;
/// How long a guest may take to its first byte.
const LIMIT: Duration = Duration::from_secs(10);

/// Restores and drops VMs, the two kinds by turns.
///
/// # Errors
/// A VM cannot be made.
pub fn measure(vcpus: &[u8], runs: usize, pause: Duration) -> Result<Rivals> {
    let scratch = Scratch::new()?;
    let mut rivals = Rivals::new("ms");
    let bare = vcpus.iter().map(|&vcpus| VmShape { vcpus, devices: 0 });
    let busy = [1, MANY_DEVICES].map(|devices| VmShape { vcpus: 1, devices });
    for (number, shape) in bare.chain(busy).enumerate() {
        let make = |irqchip| snapshot(&scratch, &format!("{irqchip}-{number}"), irqchip, &shape);
        let snapshots = [make(BOTH[0])?, make(BOTH[1])?];
        let mut restored = [Times::default(), Times::default()];
        let mut dropped = restored.clone();
        for _ in 0..runs {
            for (at, snapshot) in snapshots.iter().enumerate() {
                let (console, first) = first_byte();
                let start = Instant::now();
                let vm = snapshot.restore_with(RestoreOptions::default().console(console));
                let vm = vm.or_say("restore a snapshot")?;
                restored[at].add(first.recv_timeout(LIMIT).or_say("hear from the guest")? - start);
                let start = Instant::now();
                drop(vm);
                dropped[at].add(start.elapsed());
                thread::sleep(pause);
            }
        }
        rivals.add(&format!("restore, {shape}"), &restored);
        rivals.add(&format!("drop, {shape}"), &dropped);
    }
    Ok(rivals)
}

/// A VM's vCPUs, and how many disks it has.
struct VmShape {
    vcpus: u8,
    devices: usize,
}

impl fmt::Display for VmShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vCPUs: {}", self.vcpus)?;
        if self.devices == 0 { Ok(()) } else { write!(f, ", virtio devices: {}", self.devices) }
    }
}

/// One that is only read, so that all can have the same image.
fn disk(scratch: &Scratch, number: usize) -> Result<DiskConfig> {
    let image = scratch.path("disk");
    File::create(&image).and_then(|file| file.set_len(1 << 20)).or_say("make a disk")?;
    serde_json::from_value(json!({ "id": format!("disk{number}"), "path": image, "read_only": true }))
        .or_say("describe a disk")
}

fn first_byte() -> (Console, Receiver<Instant>) {
    let (told, first) = channel();
    (Console::to(FirstByte::new(told)), first)
}

/// A snapshot of the bench guest, which sets its devices to work and writes one byte after another.
fn snapshot(scratch: &Scratch, name: &str, irqchip: IrqchipKind, shape: &VmShape) -> Result<Snapshot> {
    let kernel = scratch.program("chatter", programs::CHATTER)?;
    let (store, name) = Store::split(&scratch.path(name)).or_say("open the store")?;
    let (console, first) = first_byte();
    let mut config = VmConfig { vcpus: shape.vcpus, irqchip, ..VmConfig::new(&kernel) };
    config.devices.disks = (0..shape.devices).map(|number| disk(scratch, number)).collect::<Result<_>>()?;
    let vm = Vm::builder().config(config).console(console).start().or_say("boot the bench guest")?;
    first.recv_timeout(LIMIT).or_say("hear from the guest")?;
    vm.snapshot(&store, &name).or_say("take a snapshot")?;
    Snapshot::open(&store, &name).or_say("open the snapshot")
}
