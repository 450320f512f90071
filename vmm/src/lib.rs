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
//! The library is synchronous and installs no signal handler. A process may hold any number of VMs; each has a thread
//! a vCPU. `SIGRTMIN` is what brings a vCPU out of the guest; it is blocked on the vCPU threads and nowhere else.
//!
//! Memory of a packed snapshot is unpacked as it is touched. What cannot be had ends its VM ([`Error::Crashed`]):
//! vCPUs come out with an error, and devices, which ask before they touch memory, have one too. A thread that
//! reads such memory itself gets SIGSEGV (or SIGBUS), because any content would be wrong: a program that wants
//! to say why before it ends has a handler that asks [`unreadable_memory`]. [`Unpack::AtOnce`] avoids all that.
//!
//! # Map
//!
//! [`Vm`] is what an owner holds. Below it: `machine` (the one constructor) over `shell` (an empty VM, in the order that
//! is fast), `cpu` (vCPU threads), `devices`, `snapshot`, `memory`, `pager`, `kvm`. `persist` is the snapshot contract.

mod capture;
pub mod config;
pub mod console;
pub mod control;
mod cpu;
mod devices;
pub mod doctor;
pub mod error;
pub mod kvm;
pub mod lazy;
mod machine;
mod memory;
mod memory_held;
mod pager;
mod partial;
mod persist;
mod pool;
mod shell;
pub mod snapshot;
pub mod sockets;
mod sparse;
pub mod store;
mod sync;
#[cfg(test)]
mod testing;
pub mod times;
pub mod timing;
mod trim;
pub mod vm;
pub mod vm_devices;
mod vm_working_set;

pub use capture::Course;
pub use config::{BootConfig, FileRef, IrqchipKind, VmConfig, parse_memory_mib};
pub use console::Console;
pub use control::{Ending, RunState};
#[cfg(feature = "fuzzing")]
pub use devices::virtio::fuzzing;
pub use error::{Error, Result, report};
pub use memory::faults::unreadable_memory;
pub use memory::lease::truncated_memory;
pub use memory::prefetch::Reading;
pub use memory_held::{Chunks, MemoryHeld};
pub use pager::client::PagerOptions;
pub use pool::Pool;
pub use shell::Shape;
pub use snapshot::{
    BaseSnapshot, ChangedImages, Compared, Compression, Handover, Kind, Marker, Metadata, Packing, Recorded,
    RestoreOptions, Rewound, Snapshot, SnapshotOptions, Unpack, WorkingSet,
};
pub use store::Store;
pub use vm::{Builder, Vm};
pub use vm_devices::BalloonStatus;
