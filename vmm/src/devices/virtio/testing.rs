//! A simple driver for tests. It sets a device up through its registers, sends chains and reads returned
//! ones. It can also break the rules.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use vm_memory::{Bytes, GuestAddress};

use super::mirror::Mirror;
use super::transport::Transport;
use super::{VirtioDevice, feature};
use crate::devices::bus::BusDevice;
use crate::memory::backing::Backing;
use crate::memory::ram::GuestRam;
use crate::persist::PersistBlob;

/// Guest memory of a test.
pub(crate) const MEMORY: u64 = 16 << 20;
/// Address of the first queue's rings, and the distance to the next queue's.
const RINGS: u64 = 0x10_000;
const RING_LEN: u64 = 0x8000;
/// Address of the buffers.
const BUFFERS: u64 = 0x10_0000;
/// Limit for each wait.
const LIMIT: Duration = Duration::from_secs(20);

/// Descriptor flags (virtio 1.2, section 2.7.5).
pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// One descriptor of a chain to send.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    /// Bytes for the device to read.
    Out(&'a [u8]),
    /// Length of memory for the device to write.
    In(usize),
}

/// A chain that the device has returned.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Used {
    pub head: u16,
    pub len: u32,
    /// Content of the chain's writable parts, in full.
    pub written: Vec<u8>,
}

/// A driver and its device.
#[derive(Debug)]
pub(crate) struct Driver {
    pub ram: GuestRam,
    pub transport: Transport,
    queues: Vec<TestRing>,
    next_buffer: u64,
    mirror: Mirror,
}

#[derive(Clone, Debug, Default)]
struct TestRing {
    size: u16,
    next_descriptor: u16,
    available: u16,
    seen: u16,
    /// Writable parts of each chain, by head.
    to_write: Vec<Vec<(u64, usize)>>,
}

impl Driver {
    /// Sets a device up with all the features that it offers, except event indices.
    pub(crate) fn new(device: impl VirtioDevice + 'static) -> Self {
        Self::with_features(device, !feature::EVENT_IDX)
    }

    /// Sets a device up with the features of `wanted` that it offers.
    pub(crate) fn with_features(device: impl VirtioDevice + 'static, wanted: u64) -> Self {
        Self::around(Arc::new(Mutex::new(device)), wanted)
    }

    /// As [`Driver::with_features`], with a device that the test changes while it works.
    pub(crate) fn around(device: Arc<Mutex<dyn VirtioDevice>>, wanted: u64) -> Self {
        let ram = GuestRam::reserve(MEMORY).unwrap();
        Backing::Fresh.map(&ram).unwrap();
        Self::with_memory(device, ram, wanted)
    }

    /// As [`Driver::around`], in the caller's memory of at least [`MEMORY`] bytes.
    pub(crate) fn with_memory(device: Arc<Mutex<dyn VirtioDevice>>, ram: GuestRam, wanted: u64) -> Self {
        let mut driver = Self {
            transport: Transport::new("test", device, ram.clone()).unwrap(),
            mirror: Mirror::new(&ram),
            ram,
            queues: Vec::new(),
            next_buffer: BUFFERS,
        };
        driver.set_up(wanted);
        driver
    }

    /// Takes a reset device to `DRIVER_OK`.
    pub(crate) fn set_up(&mut self, wanted: u64) {
        self.set(0x70, 0);
        self.set(0x70, 3);
        for half in 0..2 {
            self.set(0x14, half);
            let offered = self.get(0x10);
            self.set(0x24, half);
            self.set(0x20, offered & (wanted >> (32 * half)) as u32);
        }
        self.set(0x70, 11);
        assert_eq!(self.get(0x70), 11, "the device refuses the features");
        self.queues.clear();
        for queue in 0.. {
            self.set(0x30, queue);
            let size = self.get(0x34).min(64) as u16;
            if size == 0 {
                break;
            }
            let base = RINGS + u64::from(queue) * RING_LEN;
            self.mirror.write(base, &[0; RING_LEN as usize]);
            self.set(0x38, size.into());
            for (register, address) in [(0x80, base), (0x90, base + 0x2000), (0xa0, base + 0x4000)] {
                self.set(register, address as u32);
                self.set(register + 4, (address >> 32) as u32);
            }
            self.set(0x44, 1);
            self.queues.push(TestRing {
                size,
                to_write: vec![Vec::new(); size.into()],
                ..TestRing::default()
            });
        }
        self.set(0x70, 15);
    }

    // ---- Registers ----

    pub(crate) fn get(&mut self, register: u64) -> u32 {
        let mut data = [0; 4];
        self.transport.read(register, &mut data);
        u32::from_le_bytes(data)
    }

    pub(crate) fn set(&mut self, register: u64, value: u32) {
        self.transport.write(register, &value.to_le_bytes());
    }

    pub(crate) fn needs_reset(&mut self) -> bool {
        self.get(0x70) & 0x40 != 0
    }

    // ---- Chains ----

    /// Sends a chain and notifies the device. Returns the head.
    pub(crate) fn send(&mut self, queue: usize, parts: &[Part<'_>]) -> u16 {
        let head = self.lay(queue, parts);
        self.offer(queue, head);
        head
    }

    /// Makes several chains available at once, and notifies the device.
    pub(crate) fn send_together(&mut self, queue: usize, chains: &[&[Part<'_>]]) {
        for chain in chains {
            let head = self.lay(queue, chain);
            self.list(queue, head);
        }
        self.publish(queue);
    }

    fn lay(&mut self, queue: usize, parts: &[Part<'_>]) -> u16 {
        let head = self.queues[queue].next_descriptor;
        let size = self.queues[queue].size;
        let mut to_write = Vec::new();
        for (number, part) in parts.iter().enumerate() {
            let len = match part {
                Part::Out(bytes) => bytes.len(),
                Part::In(len) => *len,
            };
            let address = self.buffer(len);
            let mut flags = if number + 1 < parts.len() { NEXT } else { 0 };
            match part {
                Part::Out(bytes) => self.mirror.write(address, bytes),
                Part::In(_) => {
                    flags |= WRITE;
                    to_write.push((address, len));
                }
            }
            let index = (head + number as u16) % size;
            self.describe(queue, index, (address, len as u32), flags, (index + 1) % size);
        }
        let ring = &mut self.queues[queue];
        ring.next_descriptor = (head + parts.len() as u16) % size;
        ring.to_write[usize::from(head)] = to_write;
        head
    }

    /// Allocates guest memory that nothing else uses for a while.
    pub(crate) fn buffer(&mut self, len: usize) -> u64 {
        if self.next_buffer + len as u64 + 16 > MEMORY {
            self.next_buffer = BUFFERS;
        }
        let address = self.next_buffer;
        self.next_buffer += (len as u64).next_multiple_of(16);
        address
    }

    /// Writes a descriptor of any content.
    pub(crate) fn describe(&self, queue: usize, index: u16, (at, len): (u64, u32), flags: u16, next: u16) {
        let entry = RINGS + queue as u64 * RING_LEN + u64::from(index) * 16;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&at.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        self.mirror.write(entry, &bytes);
    }

    /// Makes the chain at `head` available and notifies the device.
    pub(crate) fn offer(&mut self, queue: usize, head: u16) {
        self.list(queue, head);
        self.publish(queue);
    }

    fn list(&mut self, queue: usize, head: u16) {
        let ring = &mut self.queues[queue];
        let base = RINGS + queue as u64 * RING_LEN + 0x2000;
        let at = base + 4 + 2 * u64::from(ring.available % ring.size);
        ring.available = ring.available.wrapping_add(1);
        self.mirror.write(at, &head.to_le_bytes());
    }

    fn publish(&mut self, queue: usize) {
        self.jump(queue, self.queues[queue].available);
        self.set(0x50, queue as u32);
    }

    /// Sets the index of the available ring.
    pub(crate) fn jump(&self, queue: usize, available: u16) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.mirror.write(RINGS + queue as u64 * RING_LEN + 0x2002, &available.to_le_bytes());
    }

    /// Returns the next chain that has come back.
    pub(crate) fn poll(&mut self, queue: usize) -> Option<Used> {
        let base = RINGS + queue as u64 * RING_LEN + 0x4000;
        let ring = &mut self.queues[queue];
        let index: u16 =
            self.ram.guest().load(GuestAddress(base + 2), std::sync::atomic::Ordering::Acquire).unwrap();
        if index == ring.seen {
            return None;
        }
        let entry = GuestAddress(base + 4 + 8 * u64::from(ring.seen % ring.size));
        let [head, len]: [u32; 2] = self.ram.guest().read_obj(entry).unwrap();
        ring.seen = ring.seen.wrapping_add(1);
        let mut written = Vec::new();
        for (at, len) in &ring.to_write[head as usize] {
            let mut bytes = vec![0; *len];
            self.ram.guest().read_slice(&mut bytes, GuestAddress(*at)).unwrap();
            written.extend(bytes);
        }
        Some(Used { head: head as u16, len, written })
    }

    /// Waits for the next chain to come back.
    pub(crate) fn wait(&mut self, queue: usize) -> Used {
        self.until("a chain comes back", |driver| driver.poll(queue))
    }

    /// Sends a chain and waits for it.
    pub(crate) fn ask(&mut self, queue: usize, parts: &[Part<'_>]) -> Used {
        let head = self.send(queue, parts);
        let used = self.wait(queue);
        assert_eq!(used.head, head);
        used
    }

    /// Waits until the device asks for a reset.
    pub(crate) fn wait_broken(&mut self) {
        self.until("the device wants to be reset", |driver| driver.needs_reset().then_some(()));
    }

    /// Waits until a queue has counted so many waits for the guest or the host.
    pub(crate) fn wait_stalls(&mut self, queue: &str, count: u64) {
        self.until("the waits are counted", |driver| {
            let metrics = driver.transport.view().metrics("test");
            (metrics.queue(queue).expect("a queue of the device").stalls == count).then_some(())
        });
    }

    /// Waits until `look` returns a value.
    pub(crate) fn until<T>(&mut self, what: &str, mut look: impl FnMut(&mut Self) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            assert!(start.elapsed() < LIMIT, "waited in vain until {what}");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Takes the transport out. A new device that is not set up takes its place.
    pub(crate) fn take_transport(&mut self) -> Transport {
        let device = Arc::new(Mutex::new(super::rng::Rng::default()));
        let other = Transport::new("test", device, self.ram.clone()).unwrap();
        std::mem::replace(&mut self.transport, other)
    }

    // ---- Snapshots ----

    /// Halts and saves the device, and continues with `device`, restored, in its place.
    pub(crate) fn move_to(&mut self, device: impl VirtioDevice + 'static) {
        self.replace(device);
        self.transport.resume().unwrap();
    }

    /// As [`Driver::move_to`]. The device takes its first turn on this thread and gets none of its own.
    pub(crate) fn move_to_idle(&mut self, device: impl VirtioDevice + 'static) {
        self.replace(device);
        self.transport.stand_by().unwrap().expect("it is halted").take();
        assert!(self.transport.settle().unwrap().is_some(), "it is idle");
    }

    fn replace(&mut self, device: impl VirtioDevice + 'static) {
        self.transport.halt();
        let state = self.transport.save_blob("test").unwrap();
        let mut transport = Transport::new("test", Arc::new(Mutex::new(device)), self.ram.clone()).unwrap();
        transport.restore_blob("test", &state).unwrap();
        self.transport = transport;
    }
}

/// Checks a rule for every device: a snapshot taken while it works contains its writes.
impl Drop for Driver {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.transport.halt();
            self.mirror.check();
        }
    }
}
