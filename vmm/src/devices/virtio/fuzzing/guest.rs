//! A guest with a device behind the real transport, and the checks after each of its acts.

use std::cell::RefCell;
use std::ops::Range;

use serde_json::value::RawValue;
use virtio_queue::QueueT;
use vm_memory::{Bytes, GuestAddress};

use super::{FuzzMemory, FuzzedDevice, MEMORY, PIECE, check_order, drive, granted};
use crate::devices::bus::BusDevice;
use crate::devices::virtio::fuzzing_hooks::grant;
use crate::devices::virtio::queue::VirtQueue;
use crate::devices::virtio::transport::Transport;
use crate::error::Result;
use crate::memory::own_writes::GuestMemory;
use crate::persist::PersistBlob;
use crate::sync::lock;

/// More rounds than any device needs between two acts.
const ROUNDS: usize = 2000;

thread_local! {
    /// The shadow of the last guest, for the next one.
    static SHADOW: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A guest and its device.
#[derive(Debug)]
pub struct Guest {
    memory: FuzzMemory,
    transport: Transport,
    /// Memory with all allowed writes and no others.
    shadow: Vec<u8>,
    /// Chains that each queue had under way when the device was restored, which an edited state may tell.
    left: Vec<u16>,
}

impl Guest {
    /// Makes a guest that has not touched its device.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn new(make: impl FnOnce() -> Result<FuzzedDevice>) -> Result<Self> {
        drive();
        let memory = FuzzMemory::new();
        let FuzzedDevice(device) = make()?;
        let transport = Transport::new("fuzz", device, memory.ram.clone())?;
        let mut shadow = SHADOW.take();
        shadow.resize(MEMORY as usize, 0);
        shadow.fill(0);
        Ok(Self { memory, transport, shadow, left: Vec::new() })
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

    /// Writes to memory, as far as it exists at `at`.
    pub fn poke(&mut self, at: u64, bytes: &[u8]) {
        let written = self.memory.poke(at, bytes);
        if written > 0 {
            self.shadow[at as usize..][..written].copy_from_slice(&bytes[..written]);
        }
    }

    /// Reads a number from memory.
    #[must_use]
    pub fn peek(&self, at: u64) -> u16 {
        self.memory.guest().read_obj(GuestAddress(at)).unwrap_or(0)
    }

    /// Checks memory, saves and drops the device, and continues with a device of `make`, restored. Returns
    /// false if the host made that impossible, which ends the guest.
    #[must_use]
    pub fn move_to(&mut self, make: impl FnOnce() -> Result<FuzzedDevice>) -> bool {
        self.move_edited(make, |state| state)
    }

    /// As [`Guest::move_to`], with the device's state, which is JSON, changed by `edit`. Returns false if the
    /// device refuses the state, too.
    #[must_use]
    pub fn move_edited(
        &mut self,
        make: impl FnOnce() -> Result<FuzzedDevice>,
        edit: impl FnOnce(String) -> String,
    ) -> bool {
        self.transport.halt();
        self.check();
        let left = self.left.iter().copied().chain(std::iter::repeat(0));
        for (queue, left) in self.transport.halted_queues().iter().zip(left) {
            assert!(self.transport.is_broken() || queue.under_way() <= left, "halted with chains under way");
        }
        let Ok(state) = self.transport.save_blob("fuzz") else { return false };
        // A file can be opened again only while no device has it locked.
        let nothing = Transport::new("fuzz", FuzzedDevice::rng().0, self.memory.ram.clone());
        drop(std::mem::replace(&mut self.transport, nothing.expect("a descriptor")));
        let Ok(FuzzedDevice(device)) = make() else { return false };
        self.transport = Transport::new("fuzz", device, self.memory.ram.clone()).expect("a descriptor");
        let Ok(state) = RawValue::from_string(edit(state.get().to_owned())) else { return false };
        if self.transport.restore_blob("fuzz", &state).is_err() {
            return false;
        }
        self.left = self.transport.halted_queues().iter().map(VirtQueue::under_way).collect();
        if self.transport.resume().is_err() {
            return false;
        }
        self.work();
        true
    }

    /// Lets the device do all its work.
    pub fn work(&mut self) {
        work(&self.transport, self.memory.guest());
    }

    /// Asserts that the device changed only memory that the guest let it write.
    fn check(&mut self) {
        let memory = self.memory.guest();
        for Range { start, end } in granted() {
            let (start, end) = (start.min(MEMORY), end.min(MEMORY));
            let known = &mut self.shadow[start as usize..end as usize];
            memory.read_slice(known, GuestAddress(start)).expect("in memory");
        }
        // Page by page would take longer than the program, and so would memory for all of it.
        let mut piece = [0; PIECE];
        for (start, known) in (0..).step_by(PIECE).zip(self.shadow.chunks(PIECE)) {
            memory.read_slice(&mut piece, GuestAddress(start)).expect("in memory");
            if piece != *known {
                let place = piece.iter().zip(known).take_while(|(is, was)| is == was).count();
                let (is, was, at) = (piece[place], known[place], start + place as u64);
                panic!("the device wrote {is:#x} over {was:#x} at {at:#x}, to which it had no leave");
            }
        }
    }
}

/// Lets a device do all its work, and checks its queues.
pub(super) fn work(transport: &Transport, memory: &GuestMemory) {
    let Some(idle_slot) = transport.idle_slot() else { return };
    let Some(device_loop) = &mut *lock(&idle_slot) else { return };
    let rounds = (0..ROUNDS).take_while(|_| device_loop.try_round()).count();
    assert!(rounds < ROUNDS, "the device works without end");
    for queue in device_loop.queues() {
        check_order(queue);
        let used_ring_and_avail_event = 6 + 8 * u64::from(queue.size());
        grant(queue.ring.used_ring(), used_ring_and_avail_event);
        assert!(!queue.ring.ready() || queue.is_usable(memory), "at work on rings outside of memory");
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.transport.halt();
        self.memory.spare();
        SHADOW.set(std::mem::take(&mut self.shadow));
    }
}
