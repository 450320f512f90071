//! The harness of the whole-program tests. It starts the real `volt-vmm` as a child, types into its guest,
//! waits for what the guest says, takes snapshots and restores them.
//!
//! ```text
//! Boot ──start──> Guest ──snapshot──> Snapshot ──restore──> Guest     each keeps its Scratch directory alive
//! ```
//!
//! Every child is killed when its `Guest` goes, or when this process does; every scratch directory is removed
//! with the last that needs it. Environment: `VOLT_VMM` is the binary (otherwise the one beside the test
//! executable), `VOLT_LAB` says that time is emulated.

pub mod boot;
pub mod child;
pub mod cpu;
pub mod damage;
pub mod disks;
pub mod exposition;
pub mod faults;
pub mod guest;
pub mod held;
pub mod held_syncs;
pub mod host;
pub mod injected;
pub mod jails;
pub mod kvm_shim;
pub mod launch;
pub mod memory_handler;
pub mod names;
pub mod namespace;
pub mod need;
pub mod network;
mod notified;
pub mod numbers;
pub mod openapi;
pub mod outcome;
pub mod pagers;
pub mod patience;
pub mod power;
pub mod pressure;
pub mod program;
pub mod progress;
pub mod recorder;
pub mod registry;
pub mod rest;
pub mod scratch;
mod silence;
pub mod snapshot;
pub mod state_file;
pub mod streams;
pub mod terminal;
pub mod tmux;
pub mod transcript;
pub mod vsock;
pub mod web;
pub mod wire;

pub use boot::{Boot, IRQCHIPS};
pub use child::Child;
pub use exposition::Exposition;
pub use guest::Guest;
pub use held::Held;
pub use held_syncs::HeldSyncs;
pub use jails::Jails;
pub use kvm_shim::KvmShim;
pub use launch::{Input, SECRET};
pub use memory_handler::{Conduct, MemoryHandler};
pub use names::Names;
pub use namespace::Namespace;
pub use network::{Network, OwnedTap, inherited_tap};
pub use numbers::{consecutive, numbers};
pub use outcome::Outcome;
pub use pagers::processes_with;
pub use patience::{limited, output, patience, wait_until};
pub use pressure::{MemoryLimit, Pressure};
pub use recorder::Recorder;
pub use scratch::Scratch;
pub use snapshot::Snapshot;
pub use terminal::Terminal;
pub use wire::Wire;

use std::path::PathBuf;
use std::sync::OnceLock;

/// A suite of whole-program tests.
#[must_use]
pub fn suite(name: &'static str) -> volt_test_runner::Suite {
    volt_test_runner::Suite { name, limit: patience::limit() }
}

/// Returns the number of generations of snapshots in a test: 6, or the number in `VOLT_GENERATIONS`.
///
/// # Panics
/// `VOLT_GENERATIONS` is no number.
#[must_use]
pub fn generations() -> usize {
    let given = std::env::var("VOLT_GENERATIONS").ok();
    given.map_or(6, |given| given.parse().expect("VOLT_GENERATIONS is a number"))
}

/// Returns the number of clones of each kind in a test: 5, or half of `VOLT_GENERATIONS` if that is more.
#[must_use]
pub fn clones() -> usize {
    (generations() / 2).max(5)
}

/// Returns a raw memory file with zeros for the generation id and VMClock. These pages differ in every clone.
#[must_use]
pub fn without_generation(mut memory: Vec<u8>) -> Vec<u8> {
    memory[0xf_e000..0x10_0000].fill(0);
    memory
}

/// The program of Linux guests that draws random numbers (`guests/draws.c`).
pub static DRAWS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/draws.elf"));

/// The small guest, as a file. It is part of this executable, so that the lab needs no other.
#[must_use]
pub fn small_guest() -> PathBuf {
    static SMALL_GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest.elf"));
    static FILE: OnceLock<(Scratch, PathBuf)> = OnceLock::new();
    let (_, path) = FILE.get_or_init(|| {
        let scratch = Scratch::left_behind_by_statics();
        let path = scratch.path("guest.elf");
        std::fs::write(&path, SMALL_GUEST).expect("write the small guest");
        (scratch, path)
    });
    path.clone()
}
