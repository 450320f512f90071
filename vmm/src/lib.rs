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

pub mod config;
pub mod console;
mod devices;
pub mod doctor;
pub mod error;
pub mod kvm;
mod machine;
mod memory;
mod pager;
mod partial;
mod persist;
mod progress;
pub mod replay;
pub mod run_control;
pub mod snapshot;
pub mod sockets;
pub mod store;
mod sync;
#[cfg(test)]
mod testing;
mod threads;
pub mod timing;
pub mod vm;

pub use crate::machine::balloon::BalloonStatus;
pub use crate::machine::pool::Pool;
pub use crate::machine::shell::Shape;
pub use crate::memory::files::lease::truncated_memory;
pub use crate::memory::lazy::faults::unreadable_memory;
pub use crate::memory::lazy::prefetch::Reading;
pub use crate::run_control::{Ending, RunState};
pub use crate::snapshot::take::capture::Course;
pub use crate::vm::memory_usage::{Chunks, MemoryHeld};
pub use config::{BootConfig, FileRef, IrqchipKind, VmConfig, parse_memory_mib};
pub use console::Console;
#[cfg(feature = "fuzzing")]
pub use devices::virtio::fuzzing;
pub use error::{Error, Result, report};
pub use pager::options::PagerOptions;
pub use progress::Progress;
pub use snapshot::{
    BaseSnapshot, ChangedImages, Compared, Compression, Handover, Kind, Marker, Metadata, Packing, Recorded,
    RestoreOptions, Rewound, Snapshot, SnapshotOptions, Unpack, WorkingSet,
};
pub use store::Store;
pub use vm::lent::LentVm;
pub use vm::{Builder, Vm};

/// Compiles the examples of the documentation.
#[cfg(doctest)]
mod documentation {
    #[doc = include_str!("../../README.md")]
    struct Readme;
    #[doc = include_str!("../../docs/library.md")]
    struct Library;
}
