//! Embeddable KVM microVMs whose reason to exist is the snapshot.
//!
//! ```no_run
//! use volt_vmm::{Snapshot, Store, Vm};
//!
//! # fn main() -> volt_vmm::Result<()> {
//! let store = Store::open("file:///var/lib/volt")?;
//! let vm = Vm::builder().kernel("vmlinux").initrd("init.cpio").vcpus(2).memory_mib(512).start()?;
//! vm.snapshot(&store, "warm")?;
//! let warm = Snapshot::open(&store, "warm")?;                 // verified once, shared
//! let clones = [warm.restore()?, warm.restore()?];            // pages fault in
//! clones.iter().try_for_each(Vm::wait)
//! # }
//! ```
//!
//! The library is synchronous and installs no signal handler. A process may hold any number of VMs, and each
//! vCPU has a thread. `SIGRTMIN` brings a vCPU out of the guest. It is blocked on the vCPU threads, and on no
//! other.
//!
//! Memory of a packed snapshot is unpacked on touch. Unavailable memory ends its VM ([`Error::Crashed`]):
//! vCPUs leave the guest with an error, and devices check before they touch memory. A thread of the program
//! that reads unavailable memory gets SIGSEGV or SIGBUS, because any content would be wrong. A signal handler
//! that calls [`unreadable_memory`] can report the cause. [`Unpack::AtOnce`] avoids all of this.
//!
//! # Map
//!
//! [`Vm`] is the owner's handle, and `vm` assembles it. Below it, each room uses those to its right:
//! `snapshot`, `machine`, `devices`, `kvm` and `pager`, `memory`, `config`, leaves such as `persist` (the
//! snapshot contract). `snapshot` takes, restores and transforms. `machine` is an empty VM with its vCPU
//! threads, then devices and memory.

#![cfg_attr(not(any(feature = "internal", test)), warn(unnameable_types))]

pub mod config;
mod console;
mod counters;
pub mod cpu;
mod devices;
pub mod doctor;
mod error;
mod events;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod holders;
mod host_network;
#[cfg(any(feature = "internal", test))]
#[doc(hidden)]
pub mod internal;
mod kvm;
mod machine;
mod memory;
mod metadata;
mod nat;
mod packets;
mod pager;
mod partial;
mod paths;
mod persist;
mod progress;
#[cfg(any(feature = "internal", test))]
mod replay;
mod resolver;
mod run_control;
mod run_state;
pub mod sandbox;
#[cfg(feature = "openapi")]
mod schemas;
pub mod snapshot;
mod sockets;
mod store;
mod sync;
#[cfg(test)]
mod testing;
mod threads;
mod timing;
mod vm;

pub use config::{
    BootConfig, ClockMode, CpuTemplate, FileRef, HugePages, IrqchipKind, VmConfig, parse_memory_mib,
    parse_size,
};
pub use console::Console;
pub use counters::device::{DeviceMetrics, OperationMetrics, QueueMetrics};
pub use counters::exits::{ExitReason, Exits};
pub use counters::faults::{FaultKind, FaultMetrics, FaultsOfKind};
pub use counters::histogram::Durations;
pub use counters::metadata::MetadataMetrics;
pub use counters::policy::{PolicyEvent, PolicyMetrics};
pub use counters::snapshots::{SnapshotAct, SnapshotMetrics};
pub use devices::i8042::I8042Accesses;
pub use devices::virtio::balloon::{Hinting, Statistics as BalloonStatistics};
pub use devices::virtio::block::rings::prepare_io_urings;
pub use error::cure::{self, Cure};
pub use error::{Error, Invalid, Result, problem, report};
pub use events::VmEvent;
pub use kvm::host::HostIdentity;
pub use machine::balloon::BalloonStatus;
pub use machine::pool::Pool;
pub use machine::shell::VmShape;
pub use memory::files::lease::truncated_memory;
pub use memory::lazy::faults::unreadable_memory;
pub use memory::lazy::prefetch::Reading;
pub use metadata::MetadataStore;
pub use pager::handler::MemoryHandler;
pub use pager::options::PagerOptions;
pub use progress::Progress;
pub use run_control::{Ending, RunState};
pub use snapshot::take::capture::CaptureStats;
pub use snapshot::{
    AtCapture, BaseSnapshot, ChangedImages, Compression, Handover, Metadata, Packing, RecordUntil,
    RecordingSummary, RestoreOptions, RewindStats, Snapshot, SnapshotFiles, SnapshotKind, SnapshotOptions,
    Unpack, WorkingSet, WorkingSetHits,
};
pub use store::Store;
pub use timing::RestorePhases;
pub use vm::lent::LentVm;
pub use vm::memory_usage::{Chunks, MemoryUsage};
pub use vm::metrics::{Metrics, SerialMetrics};
pub use vm::provisional::ProvisionalVm;
pub use vm::{Vm, VmBuilder};
/// The source of [`Error::Payload`]: a kernel, initrd or command line that cannot be loaded.
pub use volt_kernel::Error as PayloadError;
/// Rules of what a guest may reach: the type of [`Devices::policy`](config::devices::Devices::policy).
pub use volt_policy as policy;

/// The types of the fields of [`PayloadError`].
pub mod payload {
    pub use vm_memory::GuestMemoryError;
    pub use volt_kernel::error::{FileName, Role, Size};
}

/// Compiles the examples of the documentation.
#[cfg(doctest)]
mod documentation {
    #[doc = include_str!("../../README.md")]
    struct Readme;
    #[doc = include_str!("../../docs/library.md")]
    struct Library;
}
