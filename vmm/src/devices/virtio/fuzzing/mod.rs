//! Virtio devices for tests/fuzz (the feature `fuzzing`): the real transport and devices, on one thread, with
//! a guest that may do anything.
//!
//! ```text
//!   input ──acts──> Guest ──registers, memory──> Transport, DeviceLoop, device <──acts── the host: files, sockets
//!                     └── checks: the device wrote only where it may, indices are in order, work ends
//! ```

use std::cell::RefCell;
use std::ops::Range;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};

use vm_memory::{Bytes, GuestAddress};

mod guest;
mod queue;

pub use guest::Guest;
pub use queue::Queue;

use super::VirtioDevice;
use super::balloon::Balloon;
use super::block::Block;
use super::console::VirtioConsole;
use super::fuzzing_hooks::{DRIVING, GRANTED};
use super::net::Net;
use super::queue::VirtQueue;
use super::rng::Rng;
use super::transport::Transport;
use super::vsock::Vsock;
use crate::config::devices::{BalloonConfig, ConsoleConfig, DiskConfig, NetConfig, VsockConfig};
use crate::error::Result;
use crate::memory::backing::Backing;
use crate::memory::own_writes::GuestMemory;
use crate::memory::ram::GuestRam;

/// Bytes of guest memory.
pub const MEMORY: u64 = 1 << 20;
const PAGE: usize = 4096;
/// Bytes compared at once.
const PIECE: usize = 1 << 15;

thread_local! {
    /// Memory of the last guest, for the next one.
    static SPARE: RefCell<Option<FuzzMemory>> = const { RefCell::new(None) };
}

/// Memory that the device was allowed to write: ranges in order, without overlaps.
fn granted() -> Vec<Range<u64>> {
    GRANTED.with_borrow_mut(|granted| {
        granted.sort_unstable_by_key(|range| range.start);
        granted.dedup_by(|next, range| {
            let meets = next.start <= range.end;
            range.end = if meets { range.end.max(next.end) } else { range.end };
            meets
        });
        granted.clone()
    })
}

/// Guest memory, zero at first.
#[derive(Clone, Debug)]
pub(super) struct FuzzMemory {
    ram: GuestRam,
}

impl FuzzMemory {
    /// Clears and takes the memory of the last guest: a new mapping takes longer than most programs.
    fn new() -> Self {
        let Some(used) = SPARE.take() else {
            let ram = GuestRam::reserve(MEMORY).expect("a little address space");
            Backing::Fresh.map(&ram).expect("a little memory");
            return Self { ram };
        };
        for start in (0..MEMORY).step_by(PIECE) {
            used.guest().write_slice(&[0; PIECE], GuestAddress(start)).expect("in memory");
        }
        used
    }

    fn guest(&self) -> &GuestMemory {
        self.ram.guest()
    }

    /// Writes as far as memory exists at `at`. Returns the number of bytes written.
    fn poke(&self, at: u64, bytes: &[u8]) -> usize {
        let room = MEMORY.saturating_sub(at).min(bytes.len() as u64) as usize;
        if room > 0 {
            self.guest().write_slice(&bytes[..room], GuestAddress(at)).expect("in memory");
        }
        room
    }

    /// Keeps the memory for the next guest.
    fn spare(&self) {
        SPARE.set(Some(self.clone()));
    }
}

/// Makes this thread drive all devices that it makes from now on.
pub(crate) fn drive() {
    DRIVING.set(true);
    GRANTED.with_borrow_mut(Vec::clear);
}

/// Lets a device of a whole machine do all its work.
pub(crate) fn work(transport: &Transport, memory: &GuestMemory) {
    guest::work(transport, memory);
}

/// A device as the host makes it.
#[derive(Debug)]
pub struct FuzzedDevice(Arc<Mutex<dyn VirtioDevice>>);

impl FuzzedDevice {
    fn new(device: impl VirtioDevice + 'static) -> Self {
        Self(Arc::new(Mutex::new(device)))
    }

    /// The entropy device.
    #[must_use]
    pub fn rng() -> Self {
        Self::new(Rng::default())
    }

    /// A disk.
    ///
    /// # Errors
    /// As when a VM starts.
    pub fn disk(config: &DiskConfig) -> Result<Self> {
        Block::open(config).map(Self::new)
    }

    /// A network interface, and the other end of its connection, which carries frames with headers.
    #[must_use]
    pub fn net(config: &NetConfig) -> (Self, UnixDatagram) {
        let (net, other) = Net::on_wire(config);
        (Self::new(net), other)
    }

    /// A vsock.
    ///
    /// # Errors
    /// As when a VM starts.
    pub fn vsock(config: &VsockConfig) -> Result<Self> {
        Vsock::open(config).map(Self::new)
    }

    /// A console.
    ///
    /// # Errors
    /// As when a VM starts.
    pub fn console(config: &ConsoleConfig) -> Result<Self> {
        VirtioConsole::open(config).map(Self::new)
    }

    /// A balloon.
    ///
    /// # Errors
    /// As when a VM starts.
    pub fn balloon(config: &BalloonConfig) -> Result<Self> {
        Balloon::new(config, MEMORY >> 20).map(Self::new)
    }
}

/// Asserts that no more chains were put back than taken, and no more taken than the queue has entries.
fn check_order(queue: &VirtQueue) {
    let (under_way, size) = (queue.under_way(), queue.size());
    assert!(under_way <= size, "{under_way} chains under way of {size}");
}
