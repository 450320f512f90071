//! The picture of a VM's work: all that its threads counted since it began.

use crate::counters::device::DeviceMetrics;
use crate::counters::exits::Exits;
use crate::counters::faults::FaultMetrics;
use crate::counters::snapshots::SnapshotMetrics;
use crate::devices::i8042::I8042Accesses;
use crate::devices::virtio_slots::BALLOON;
use crate::machine::shared::Work;
use crate::timing::RestorePhases;
use crate::vm::Vm;
use crate::vm::memory_usage::MemoryUsage;

/// The work of a VM. Numbers begin at 0 for each VM, after a boot, a restore and a fork alike, and a rewind
/// leaves them alone. They only grow, except memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Exits of each vCPU to this process, by reason, in the order of the vCPUs.
    pub vcpus: Vec<Vec<Exits>>,
    /// Durations of the restore; absent after a boot.
    pub restore: Option<RestorePhases>,
    /// Memory on the host. Absent if the host does not tell.
    pub memory: Option<MemoryUsage>,
    /// Bytes of guest memory that the guest gave back to the host through its balloon.
    pub given_back_bytes: u64,
    /// Page faults of memory that is filled on touch, by kind. Absent for other memory, and if a process that
    /// answers them does not tell.
    pub faults: Option<FaultMetrics>,
    /// Virtio devices, in the order in which the guest numbers them.
    pub devices: Vec<DeviceMetrics>,
    /// The serial port.
    pub serial: SerialMetrics,
    /// The keyboard controller.
    pub i8042: I8042Accesses,
    /// Snapshots and rewinds, by kind.
    pub snapshots: Vec<SnapshotMetrics>,
}

/// Bytes that went through the serial port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SerialMetrics {
    /// Bytes that the guest read.
    pub received_bytes: u64,
    /// Bytes that the guest wrote.
    pub sent_bytes: u64,
    /// Those of the latter that a limit dropped ([`crate::Console::limited`]).
    pub dropped_bytes: u64,
}

impl Vm {
    /// The VM's work so far. Reads the page tables for [`Metrics::memory`], as [`Vm::memory_usage`]. A pause
    /// of the VM does not hold it up.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let (memory, faults) = self.memory_and_faults().ok().unzip();
        let snapshots = self.snapshots.get().map(|counters| counters.read().to_vec());
        let Work { vcpus, devices: counters, .. } = self.machine.work();
        let devices = counters.virtio();
        // Its other operations give nothing back.
        let balloon = devices.iter().find(|device| device.name == BALLOON);
        let given_back = balloon.into_iter().flat_map(|balloon| &balloon.operations);
        let given_back_bytes = given_back.filter(|operation| operation.name != "statistics");
        let [received_bytes, sent_bytes, dropped_bytes] = counters.serial_bytes();
        Metrics {
            vcpus: vcpus.iter().map(|exits| exits.read().to_vec()).collect(),
            restore: self.phases,
            memory,
            given_back_bytes: given_back_bytes.map(|operation| operation.bytes).sum(),
            faults: faults.flatten(),
            devices,
            serial: SerialMetrics { received_bytes, sent_bytes, dropped_bytes },
            i8042: counters.i8042_accesses(),
            snapshots: snapshots.unwrap_or_default(),
        }
    }
}
