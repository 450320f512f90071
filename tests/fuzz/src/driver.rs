//! A driver that follows the rules as far as its program asks. Most programs start a device, so that hostile
//! acts meet a working one.

use arbitrary::{Arbitrary, Unstructured};
use volt_vmm::fuzzing::{Guest, MEMORY};

/// Address of the first queue's rings, and the distance to the next queue's.
const RINGS: u64 = 0x1000;
const RING_LEN: u64 = 0x4000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
/// Address of the buffers.
const BUFFERS: u64 = 0x2_0000;
const MOST_QUEUES: u64 = 5;
/// Most parts of a request.
const MOST_PARTS: usize = 40;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Setup of a device.
#[derive(Debug, Arbitrary)]
pub struct Setup {
    /// Last step of the setup: none, features, queues, or `DRIVER_OK`, which is the most frequent. The
    /// program's acts continue from there.
    until: u8,
    /// Offered features that the driver refuses.
    refused: Option<u32>,
    event_idx: bool,
    /// Right shift of the queues' maximum size.
    size_shift: u8,
    /// Queues that are not set up.
    left_out: u8,
    /// A rare fault in the setup of one queue, which a device must refuse.
    odd: u8,
    odd_ring: u64,
    odd_size: u16,
}

/// An act of a driver or its host.
#[derive(Debug, Arbitrary)]
pub enum Act<Head, Host> {
    /// Sends a request.
    Send(Request<Head>),
    /// Sends buffers for the device to write.
    Fill(Buffers),
    /// Acknowledges interrupts.
    Acknowledge,
    /// An act of the host.
    Host(Host),
    /// Moves the device to another process.
    Move,
    /// Writes an aligned register.
    Register { number: u8, value: Value },
    /// Writes any width at any offset.
    Write { offset: u16, data: [u8; 8], len: u8 },
    /// Reads any width at any offset.
    Read { offset: u16, len: u8 },
    /// Resets the device and sets it up again.
    SetUp(Setup),
    /// Writes any bytes to memory.
    Poke { at: u32, bytes: [u8; 16] },
    /// Writes any descriptor.
    Descriptor { queue: u8, index: u8, at: Place, len: Length, flags: u8, next: u8 },
    /// Writes an entry of the available ring with any head.
    Offer { queue: u8, head: u16, silent: bool },
    /// Changes the available index.
    Jump { queue: u8, by: i8 },
    /// Sets the available ring's flags and `used_event`, which suppress interrupts.
    Wish { queue: u8, flags: u16, used_event: u16 },
    /// Notifies the device.
    Notify { queue: u8 },
}

/// A request. One with a device's header mostly goes to the queue for requests.
#[derive(Debug, Arbitrary)]
pub struct Request<Head> {
    queue: u8,
    head: Option<Head>,
    parts: Parts,
    order: u8,
    silent: bool,
}

/// Buffers of equal length for the device to write.
#[derive(Debug, Arbitrary)]
pub struct Buffers {
    queue: u8,
    count: u8,
    len: u16,
}

/// Value of a register.
#[derive(Debug, Arbitrary)]
pub enum Value {
    /// A status or a small number.
    Small(u8),
    /// An address or any number.
    Any(u32),
}

/// Pieces of a request: mostly few, rarely many.
#[derive(Debug)]
pub struct Parts(Vec<Part>);

impl<'a> Arbitrary<'a> for Parts {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let count = match bytes.arbitrary::<u8>()? {
            few @ ..250 => usize::from(few) % 5,
            _ => MOST_PARTS,
        };
        (0..count).map(|_| bytes.arbitrary()).collect::<arbitrary::Result<_>>().map(Self)
    }
}

/// A piece of a request.
#[derive(Debug, Arbitrary)]
pub struct Part {
    writable: bool,
    at: Place,
    len: Length,
    /// Bytes for the device to read, written to memory.
    bytes: Option<[u8; 8]>,
    /// Rarely, puts the piece alone into an indirect table, which ends the chain.
    indirect: u8,
}

/// An address, mostly of unused memory.
#[derive(Debug, Arbitrary)]
pub struct Place {
    kind: u8,
    number: u64,
}

/// A length, mostly short.
#[derive(Debug, Arbitrary)]
pub struct Length {
    kind: u8,
    number: u32,
}

/// The driver.
#[derive(Debug)]
pub struct Driver {
    /// The guest that the driver belongs to.
    pub guest: Guest,
    /// Index of the queue for requests.
    requests: u8,
    sizes: Vec<u16>,
    available: Vec<u16>,
    next: Vec<u16>,
    next_buffer: u64,
}

impl Driver {
    /// Makes a driver and sets its device up.
    #[must_use]
    pub fn new(guest: Guest, requests: u8, setup: &Setup) -> Self {
        let mut driver =
            Self { guest, requests, sizes: vec![1], available: vec![0], next: vec![0], next_buffer: BUFFERS };
        driver.set_up(setup);
        driver
    }

    fn get(&mut self, register: u64) -> u32 {
        let mut data = [0; 4];
        self.guest.read(register, &mut data);
        u32::from_le_bytes(data)
    }

    fn set(&mut self, register: u64, value: u32) {
        self.guest.write(register, &value.to_le_bytes());
    }

    fn set_up(&mut self, setup: &Setup) {
        let until = setup.until % 16;
        if until == 0 {
            return;
        }
        self.set(0x70, 0);
        self.set(0x70, 3);
        let event_idx = if setup.event_idx { 1 << 29 } else { 0 };
        for half in 0..2 {
            self.set(0x14, half);
            let offered = self.get(0x10);
            self.set(0x24, half);
            let wanted = if half == 0 {
                !(setup.refused.unwrap_or(0) & 0x0fff_ffff) & !(1 << 29) | event_idx
            } else {
                !0
            };
            self.set(0x20, offered & wanted);
        }
        self.set(0x70, 11);
        if until == 1 {
            return;
        }
        for list in [&mut self.sizes, &mut self.available, &mut self.next] {
            list.clear();
        }
        for queue in 0..MOST_QUEUES {
            self.set(0x30, queue as u32);
            // Small queues are rare, because they fill up soon.
            let size = self.get(0x34) as u16 >> (setup.size_shift % 64).saturating_sub(55);
            if self.get(0x34) == 0 {
                break;
            }
            let (size, base) = (size.max(1), RINGS + queue * RING_LEN);
            self.guest.poke(base, &[0; RING_LEN as usize]);
            self.set(0x38, size.into());
            let mut rings = [base, base + AVAILABLE, base + USED];
            match setup.odd {
                odd @ 1..32 if queue == u64::from(odd) % 2 => {
                    rings[usize::from(odd) % 3] = match setup.odd_ring % 4 {
                        0 => setup.odd_ring,
                        1 => setup.odd_ring % (2 * MEMORY),
                        2 => setup.odd_ring % MEMORY,
                        _ => MEMORY - setup.odd_ring % 0x100,
                    };
                }
                odd @ 32..40 if queue == u64::from(odd) % 2 => self.set(0x38, setup.odd_size.into()),
                _ => {}
            }
            for (register, address) in [0x80, 0x90, 0xa0].into_iter().zip(rings) {
                self.set(register, address as u32);
                self.set(register + 4, (address >> 32) as u32);
            }
            if setup.left_out & 1 << queue == 0 || setup.left_out & 0xe0 != 0 {
                self.set(0x44, 1);
            }
            self.sizes.push(size);
            self.available.push(0);
            self.next.push(0);
        }
        if until > 2 {
            self.set(0x70, 15);
        }
    }

    /// Performs one act of the guest.
    pub fn act<Head: Into<Vec<u8>>, Host>(&mut self, act: Act<Head, Host>) {
        match act {
            Act::Send(Request { queue, head, parts: Parts(mut parts), order, silent }) => {
                let for_heads = head.is_some() && queue < 240;
                let queue = if for_heads { self.queue(self.requests) } else { self.queue(queue) };
                // Readable pieces mostly come first.
                if order % 16 != 0 {
                    parts.sort_by_key(|part| part.writable);
                }
                self.send(queue, head.map(Into::into), &parts);
                self.notify(queue, silent);
            }
            Act::Fill(Buffers { queue, count, len }) => {
                let queue = self.queue(queue);
                for _ in 0..self.room(queue).min(count.into()) {
                    let at = self.fresh(len.into());
                    self.chain(queue, &[(at, len.into(), WRITE)]);
                }
                self.notify(queue, false);
            }
            Act::Acknowledge => {
                let pending = self.get(0x60);
                self.set(0x64, pending);
            }
            Act::Register { number, value } => {
                let value = match value {
                    Value::Small(value) => value.into(),
                    Value::Any(value) => value,
                };
                self.set(u64::from(number % 72) * 4, value);
            }
            Act::Write { offset, data, len } => {
                let len = 1 + usize::from(len % 8);
                self.guest.write((offset % 0x1000).into(), &data[..len]);
            }
            Act::Read { offset, len } => {
                let mut data = [0; 8];
                self.guest.read((offset % 0x1000).into(), &mut data[..1 + usize::from(len % 8)]);
            }
            Act::SetUp(setup) => self.set_up(&setup),
            Act::Poke { at, bytes } => self.guest.poke(u64::from(at) % MEMORY, &bytes),
            Act::Descriptor { queue, index, at, len, flags, next } => {
                let (queue, at) = (self.queue(queue), self.place(&at, 0));
                self.describe(queue, index.into(), (at, length(&len)), flags.into(), next.into());
            }
            Act::Offer { queue, head, silent } => {
                let queue = self.queue(queue);
                self.offer(queue, head);
                self.notify(queue, silent);
            }
            Act::Jump { queue, by } => {
                let queue = self.queue(queue);
                self.available[queue] = self.available[queue].wrapping_add_signed(by.into());
                self.say_available(queue);
            }
            Act::Wish { queue, flags, used_event } => {
                let queue = self.queue(queue);
                let ring = ring(queue) + AVAILABLE;
                self.guest.poke(ring, &flags.to_le_bytes());
                self.guest.poke(ring + 4 + 2 * u64::from(self.sizes[queue]), &used_event.to_le_bytes());
            }
            Act::Notify { queue } => self.notify(queue.into(), false),
            Act::Host(_) | Act::Move => {} // not the guest's
        }
    }

    fn queue(&self, number: u8) -> usize {
        usize::from(number) % self.sizes.len().max(1)
    }

    fn fresh(&mut self, len: u64) -> u64 {
        if self.next_buffer + len > MEMORY {
            self.next_buffer = BUFFERS;
        }
        let at = self.next_buffer;
        self.next_buffer = (at + len).next_multiple_of(16);
        at
    }

    fn place(&mut self, place: &Place, len: u32) -> u64 {
        let number = place.number;
        match place.kind % 64 {
            0 => number,
            1 => number % (2 * MEMORY),
            2 => MEMORY - number % 0x100,
            // Among other buffers.
            3..16 => BUFFERS + number % 0x100 * 0x600,
            _ => self.fresh(u64::from(len).min(MEMORY - BUFFERS)),
        }
    }

    /// Number of chains that the queue still has room for.
    fn room(&self, queue: usize) -> u16 {
        let used = self.guest.peek(ring(queue) + USED + 2);
        self.sizes[queue].saturating_sub(self.available[queue].wrapping_sub(used))
    }

    fn send(&mut self, queue: usize, head: Option<Vec<u8>>, parts: &[Part]) {
        let mut descriptors = Vec::new();
        if let Some(bytes) = head {
            let at = self.fresh(bytes.len() as u64);
            self.guest.poke(at, &bytes);
            descriptors.push((at, bytes.len() as u32, 0));
        }
        for Part { writable, at, len, bytes, indirect } in parts {
            let len = length(len);
            let at = self.place(at, len);
            if let Some(bytes) = bytes {
                self.guest.poke(at, &bytes[..bytes.len().min(len as usize)]);
            }
            let flags = if *writable { WRITE } else { 0 };
            if *indirect % 16 == 1 {
                let table = self.fresh(16);
                self.guest.poke(table, &descriptor((at, len), flags, 0));
                descriptors.push((table, 16, INDIRECT));
            } else {
                descriptors.push((at, len, flags));
            }
        }
        descriptors.truncate(self.sizes[queue].into());
        if !descriptors.is_empty() && self.room(queue) > 0 {
            self.chain(queue, &descriptors);
        }
    }

    fn chain(&mut self, queue: usize, descriptors: &[(u64, u32, u16)]) {
        let size = self.sizes.get(queue).copied().unwrap_or(1);
        let head = self.next[queue];
        for (number, (at, len, flags)) in descriptors.iter().enumerate() {
            let index = (head + number as u16) % size;
            let more = if number + 1 < descriptors.len() { NEXT } else { 0 };
            self.describe(queue, index, (*at, *len), flags | more, (index + 1) % size);
        }
        self.next[queue] = (head + descriptors.len() as u16) % size;
        self.offer(queue, head);
    }

    fn describe(&mut self, queue: usize, index: u16, buffer: (u64, u32), flags: u16, next: u16) {
        self.guest.poke(ring(queue) + u64::from(index) * 16, &descriptor(buffer, flags, next));
    }

    fn offer(&mut self, queue: usize, head: u16) {
        let size = self.sizes[queue];
        let at = ring(queue) + AVAILABLE + 4 + 2 * u64::from(self.available[queue] % size);
        self.guest.poke(at, &head.to_le_bytes());
        self.available[queue] = self.available[queue].wrapping_add(1);
        self.say_available(queue);
    }

    fn say_available(&mut self, queue: usize) {
        self.guest.poke(ring(queue) + AVAILABLE + 2, &self.available[queue].to_le_bytes());
    }

    fn notify(&mut self, queue: usize, silent: bool) {
        if !silent {
            self.set(0x50, queue as u32);
        }
    }
}

fn ring(queue: usize) -> u64 {
    RINGS + queue as u64 * RING_LEN
}

fn length(len: &Length) -> u32 {
    let number = len.number;
    match len.kind % 64 {
        0 => number,
        1..24 => number % 0x100 + 1,
        24..48 => (number % 0x40 + 1) * 512,
        _ => number % 0x1_0000 + 1,
    }
}

fn descriptor((at, len): (u64, u32), flags: u16, next: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&at.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}
