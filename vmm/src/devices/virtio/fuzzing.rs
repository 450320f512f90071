//! Virtio devices for tests/fuzz (the feature `fuzzing`): the real transport and devices, in front of a guest that may do
//! anything, on one thread. After every act it is seen to that all rules were kept.
//!
//! ```text
//!   input ──acts──> Guest ──registers, memory──> Transport, Shift, device <──acts── the host: files, sockets
//!                     └── check: memory is as the guest left it but where it gave leave, indices in order, no endless work
//! ```

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};

use virtio_queue::QueueT;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::VirtioDevice;
use super::balloon::Balloon;
use super::block::Block;
use super::console::Console;
use super::net::Net;
use super::queue::VirtQueue;
use super::rng::Rng;
use super::transport::Transport;
use super::vsock::Vsock;
use crate::config::devices::{BalloonConfig, ConsoleConfig, DiskConfig, NetConfig, VsockConfig};
use crate::devices::bus::BusDevice;
use crate::error::Result;
use crate::memory::backing::{Backing, Base};
use crate::memory::ram::GuestRam;
use crate::persist::PersistBlob;

/// Bytes of guest memory.
pub const MEMORY: u64 = 1 << 20;
const PAGE: usize = 4096;
/// More rounds than any device has work for between two acts.
const ROUNDS: usize = 2000;

thread_local! {
    /// This thread does its devices' work.
    static DRIVING: Cell<bool> = const { Cell::new(false) };
    /// Memory that no guest has.
    static SPARE: RefCell<Option<Memory>> = const { RefCell::new(None) };
    /// A shadow that no guest has.
    static SHADOW: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// Where chains gave devices leave to write.
    static GRANTED: RefCell<Vec<Range<u64>>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn is_driving() -> bool {
    DRIVING.get()
}

/// A chain has a descriptor to write.
pub(super) fn grant(at: u64, len: u64) {
    GRANTED.with_borrow_mut(|granted| granted.push(at..at.saturating_add(len)));
}

/// Guest memory, which holds zeros at first.
#[derive(Clone, Debug)]
pub struct Memory {
    ram: GuestRam,
    base: Base,
}

impl Memory {
    /// What the last program used, with zeros in it: a new mapping takes longer than most programs.
    fn new() -> Self {
        let Some(used) = SPARE.take() else {
            let ram = GuestRam::reserve(MEMORY).expect("a little address space");
            let base = Backing::Fresh.map(&ram).expect("a little memory");
            return Self { ram, base };
        };
        let mut page = [0; PAGE];
        for at in (0..MEMORY).step_by(PAGE).map(GuestAddress) {
            used.guest().read_slice(&mut page, at).expect("in memory");
            if page != [0; PAGE] {
                used.guest().write_slice(&[0; PAGE], at).expect("in memory");
            }
        }
        used
    }

    fn guest(&self) -> &GuestMemoryMmap {
        self.ram.guest()
    }
}

/// A device, as it is made from the host's side.
#[derive(Debug)]
pub struct Device {
    device: Arc<Mutex<dyn VirtioDevice>>,
    /// It may turn whole pages to zeros.
    gives_back: bool,
}

impl Device {
    fn new(device: impl VirtioDevice + 'static) -> Self {
        Self { device: Arc::new(Mutex::new(device)), gives_back: false }
    }

    /// Randomness.
    #[must_use]
    pub fn rng() -> Self {
        Self::new(Rng)
    }

    /// A disk.
    ///
    /// # Errors
    /// As when a VM starts.
    pub fn disk(config: &DiskConfig) -> Result<Self> {
        Block::open(config).map(Self::new)
    }

    /// A network interface, and the other end of its connection, which takes and gives frames with headers.
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
        Console::open(config).map(Self::new)
    }

    /// A balloon in `memory`.
    ///
    /// # Errors
    /// As when a VM starts.
    pub fn balloon(config: &BalloonConfig, memory: &Memory) -> Result<Self> {
        let balloon = Balloon::new(config, memory.base.clone(), MEMORY >> 20)?;
        Ok(Self { gives_back: true, ..Self::new(balloon) })
    }
}

/// A guest and its device.
#[derive(Debug)]
pub struct Guest {
    memory: Memory,
    transport: Transport,
    gives_back: bool,
    /// What memory holds by all that was allowed.
    shadow: Vec<u8>,
}

impl Guest {
    /// A guest that has not touched its device.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn new(make: impl FnOnce(&Memory) -> Result<Device>) -> Result<Self> {
        DRIVING.set(true);
        GRANTED.with_borrow_mut(Vec::clear);
        let memory = Memory::new();
        let Device { device, gives_back } = make(&memory)?;
        let transport = Transport::new("fuzz", device, memory.ram.clone())?;
        let mut shadow = SHADOW.take();
        shadow.resize(MEMORY as usize, 0);
        shadow.fill(0);
        Ok(Self { memory, transport, gives_back, shadow })
    }

    /// Reads registers.
    pub fn read(&mut self, offset: u64, data: &mut [u8]) {
        self.transport.read(offset, data);
        self.work();
    }

    /// Writes registers.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.transport.write(offset, data);
        self.work();
    }

    /// Writes memory, as far as there is some at `at`.
    pub fn poke(&mut self, at: u64, bytes: &[u8]) {
        let room = MEMORY.saturating_sub(at).min(bytes.len() as u64) as usize;
        if room > 0 {
            self.memory.guest().write_slice(&bytes[..room], GuestAddress(at)).expect("in memory");
            self.shadow[at as usize..][..room].copy_from_slice(&bytes[..room]);
        }
    }

    /// Reads a number of memory.
    #[must_use]
    pub fn peek(&self, at: u64) -> u16 {
        self.memory.guest().read_obj(GuestAddress(at)).unwrap_or(0)
    }

    /// Whether the device has stopped until it is reset.
    pub fn needs_reset(&mut self) -> bool {
        let mut status = [0; 4];
        self.transport.read(0x70, &mut status);
        status[0] & 0x40 != 0
    }

    /// Saves the device, drops it, and goes on with the one that `make` makes, restored. False if it could not be: the host had
    /// brought that about, and the guest is at its end.
    #[must_use]
    pub fn move_to(&mut self, make: impl FnOnce(&Memory) -> Result<Device>) -> bool {
        self.transport.halt();
        self.check();
        for queue in self.transport.halted_queues() {
            assert!(self.transport.is_broken() || under_way(queue) == 0, "halted with chains under way");
        }
        let Ok(state) = self.transport.save_blob("fuzz") else { return false };
        // A file can only be opened again when nobody has it locked.
        let nothing = Transport::new("fuzz", Device::rng().device, self.memory.ram.clone());
        drop(std::mem::replace(&mut self.transport, nothing.expect("a descriptor")));
        let Ok(Device { device, gives_back: _ }) = make(&self.memory) else { return false };
        self.transport = Transport::new("fuzz", device, self.memory.ram.clone()).expect("a descriptor");
        if self.transport.restore_blob("fuzz", &state).is_err() || self.transport.go_on().is_err() {
            return false;
        }
        self.work();
        true
    }

    /// Lets the device do all that there is to do.
    pub fn work(&mut self) {
        if let Some(shift) = self.transport.shift() {
            let rounds = (0..ROUNDS).take_while(|_| shift.try_round()).count();
            assert!(rounds < ROUNDS, "the device works without end");
            shift.queues().iter().for_each(check_order);
        }
    }

    /// Whatever changed in memory since the last time, the guest had given leave.
    ///
    /// # Panics
    /// It had not.
    pub fn check(&mut self) {
        let mut page = [0; PAGE];
        for at in (0..self.shadow.len()).step_by(PAGE) {
            self.memory.guest().read_slice(&mut page, GuestAddress(at as u64)).expect("in memory");
            let known = &mut self.shadow[at..at + PAGE];
            if page == *known {
                continue;
            }
            let given_back = self.gives_back && page == [0; PAGE];
            for (number, (is, was)) in page.iter().zip(known.iter()).enumerate() {
                let place = (at + number) as u64;
                assert!(
                    is == was || given_back || may_write(&mut self.transport, place),
                    "the device wrote {is:#x} over {was:#x} at {place:#x}, to which it had no leave"
                );
            }
            known.copy_from_slice(&page);
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.transport.halt();
        SPARE.set(Some(self.memory.clone()));
        SHADOW.set(std::mem::take(&mut self.shadow));
    }
}

fn may_write(transport: &mut Transport, place: u64) -> bool {
    let in_ring = |queue: &VirtQueue| used_ring(queue).contains(&place);
    let of_ring = match transport.shift() {
        Some(shift) => shift.queues().iter().any(in_ring),
        None => false,
    };
    of_ring
        || transport.halted_queues().iter().any(in_ring)
        || GRANTED.with_borrow(|granted| granted.iter().any(|range| range.contains(&place)))
}

/// The used ring with its `avail_event`.
fn used_ring(queue: &VirtQueue) -> Range<u64> {
    let start = queue.ring.used_ring();
    start..start.saturating_add(6 + 8 * u64::from(queue.size()))
}

/// Chains that were taken and not given back.
fn under_way(queue: &VirtQueue) -> u16 {
    queue.ring.next_avail().wrapping_sub(queue.ring.next_used())
}

/// No more was given back than had been taken, and no more taken than there can be.
fn check_order(queue: &VirtQueue) {
    assert!(under_way(queue) <= queue.size(), "{} chains under way of {}", under_way(queue), queue.size());
}

impl Drop for Queue {
    fn drop(&mut self) {
        SPARE.set(Some(self.memory.clone()));
    }
}

/// A queue by itself, in any state that a driver can bring it to.
#[derive(Debug)]
pub struct Queue {
    memory: Memory,
    queue: VirtQueue,
}

impl Queue {
    /// A queue with its rings anywhere, its indices anywhere. None where no device would begin to work on it.
    #[must_use]
    pub fn new(max: u16, size: u16, rings: [u64; 3], event_idx: bool, index: u16) -> Option<Self> {
        let memory = Memory::new();
        let mut queue = VirtQueue::new(max);
        let ring = &mut queue.ring;
        ring.set_size(size);
        let halves = |at: u64| (Some(at as u32), Some((at >> 32) as u32));
        let [descriptors, available, used] = rings.map(halves);
        ring.set_desc_table_address(descriptors.0, descriptors.1);
        ring.set_avail_ring_address(available.0, available.1);
        ring.set_used_ring_address(used.0, used.1);
        ring.set_event_idx(event_idx);
        ring.set_next_avail(index);
        ring.set_next_used(index);
        ring.set_ready(true);
        queue.is_usable(memory.guest()).then_some(Self { memory, queue })
    }

    /// Writes memory, as far as there is some at `at`.
    pub fn poke(&self, at: u64, bytes: &[u8]) {
        let room = MEMORY.saturating_sub(at).min(bytes.len() as u64) as usize;
        if room > 0 {
            self.memory.guest().write_slice(&bytes[..room], GuestAddress(at)).expect("in memory");
        }
    }

    /// Its entries.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.queue.size()
    }

    /// Takes a chain and uses it up, `step` bytes at a time. Says whether there was one; false too for one that breaks rules.
    pub fn take(&mut self, step: usize) -> Option<u16> {
        let mut chain = self.queue.pop(self.memory.guest()).ok()??;
        let mut bytes = vec![0x5a; step.clamp(1, PAGE)];
        for (buffers, reads) in [(&mut chain.readable, true), (&mut chain.writable, false)] {
            // Many descriptors may name the same memory.
            for _ in 0..ROUNDS {
                let before = buffers.len();
                let done = if reads { buffers.read(&mut bytes) } else { buffers.write(&bytes) };
                assert_eq!((done, buffers.len()), (before.min(bytes.len()), before - done));
            }
            let front = buffers.take(step);
            let pieces =
                |of: &super::chain::Buffers<'_>| of.iovecs().iter().map(|piece| piece.iov_len).sum::<usize>();
            assert_eq!((pieces(&front), pieces(buffers)), (front.len(), buffers.len()));
        }
        Some(chain.head)
    }

    /// Takes back the last taking.
    pub fn untake(&mut self) {
        if under_way(&self.queue) > 0 {
            self.queue.unpop();
        }
    }

    /// Gives chains back, one by one or together, and says whether the driver wants to hear of it.
    pub fn put(&mut self, chains: &[(u16, usize)], together: bool) -> bool {
        let (memory, queue) = (self.memory.guest(), &mut self.queue);
        let before = queue.ring.next_used();
        let room = usize::from(under_way(queue)).min(chains.len());
        let chains = &chains[..room];
        let done = match together {
            true => queue.put_together(memory, chains),
            false => chains.iter().try_for_each(|(head, written)| queue.put(memory, *head, *written)),
        };
        // A ring in memory takes any chain of the table, and none else.
        let known = chains.iter().all(|(head, _)| *head < queue.size());
        assert!(done.is_ok() || !known, "{done:?}");
        if known {
            assert_eq!(queue.ring.next_used(), before.wrapping_add(room as u16));
        }
        check_order(queue);
        queue.wants_interrupt(memory).expect("rings in memory")
    }

    /// Asks the driver to notify, or not to.
    pub fn listen(&mut self, wanted: bool) {
        let memory = self.memory.guest();
        match wanted {
            true => drop(self.queue.listen(memory).expect("rings in memory")),
            false => self.queue.hush(memory).expect("rings in memory"),
        }
    }

    /// Saves the queue and goes on with what was saved.
    pub fn reload(&mut self) {
        let state = self.queue.save();
        let text = serde_json::to_string(&state).expect("numbers");
        let state = serde_json::from_str(&text).expect("what was just written");
        let max = self.queue.ring.max_size();
        self.queue = VirtQueue::restored(&state, max).expect("what was a queue is one");
    }
}
