//! A queue without a device, in any state that a driver can cause.

use virtio_queue::QueueT;
use vm_memory::{Bytes, GuestAddress};

use super::{FuzzMemory, MEMORY, PAGE, check_order};
use crate::devices::virtio::chain::Buffers;
use crate::devices::virtio::queue::VirtQueue;

/// Descriptor flags (virtio 1.2, section 2.7.5).
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// Most pieces of a chain that are read and written.
const MOST_PIECES: usize = 2000;

/// The queue and its memory.
#[derive(Debug)]
pub struct Queue {
    memory: FuzzMemory,
    queue: VirtQueue,
}

impl Queue {
    /// Makes a queue with any rings and indices, or `None` if no device would start to work on it.
    #[must_use]
    pub fn new(max: u16, size: u16, rings: [u64; 3], event_idx: bool, index: u16) -> Option<Self> {
        let memory = FuzzMemory::new();
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

    /// Writes to memory, as far as it exists at `at`.
    pub fn poke(&self, at: u64, bytes: &[u8]) {
        self.memory.poke(at, bytes);
    }

    /// Number of entries.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.queue.size()
    }

    /// Takes a chain and uses it up, `step` bytes at a time. Returns its head, or `None` if there is no valid
    /// chain.
    pub fn take(&mut self, step: usize) -> Option<u16> {
        let mut chain = self.queue.pop(self.memory.guest()).ok()??;
        assert_eq!([chain.readable.len(), chain.writable.len()], self.lengths(chain.head));
        let mut bytes = vec![0x5a; step.clamp(1, PAGE)];
        for (buffers, reads) in [(&mut chain.readable, true), (&mut chain.writable, false)] {
            // Many descriptors may name the same memory.
            for _ in 0..MOST_PIECES {
                let before = buffers.len();
                let done = if reads { buffers.read(&mut bytes) } else { buffers.write(&bytes) };
                assert_eq!((done, buffers.len()), (before.min(bytes.len()), before - done));
            }
            let front = buffers.take(step);
            let pieces = |of: &Buffers<'_>| of.iovecs().iter().map(|piece| piece.iov_len).sum::<usize>();
            assert_eq!((pieces(&front), pieces(buffers)), (front.len(), buffers.len()));
        }
        Some(chain.head)
    }

    /// Readable and writable bytes of a valid chain, by a second walk.
    fn lengths(&self, head: u16) -> [usize; 2] {
        let mut lengths = [0; 2];
        let (mut table, mut index) = (self.queue.ring.desc_table(), head);
        let mut count = 0;
        loop {
            let at = GuestAddress(table + 16 * u64::from(index));
            let [at, rest]: [u64; 2] = self.memory.guest().read_obj(at).expect("a table in memory");
            let (len, flags, next) = (rest & 0xffff_ffff, (rest >> 32) as u16, (rest >> 48) as u16);
            if flags & INDIRECT != 0 {
                (table, index) = (at, 0);
                continue;
            }
            count += 1;
            assert!(count <= self.size(), "more descriptors than the queue has");
            assert!(
                len > 0 && at.checked_add(len).is_some_and(|end| end <= MEMORY),
                "{len} bytes at {at:#x}"
            );
            assert!(flags & WRITE != 0 || lengths[1] == 0, "to read after one to write");
            lengths[usize::from(flags & WRITE != 0)] += len as usize;
            if flags & NEXT == 0 {
                return lengths;
            }
            index = next;
        }
    }

    /// Undoes the last take.
    pub fn untake(&mut self) {
        if self.queue.under_way() > 0 {
            self.queue.unpop();
        }
    }

    /// Puts chains back, one by one or together. Returns whether the driver wants an interrupt.
    pub fn put(&mut self, chains: &[(u16, usize)], together: bool) -> bool {
        let (memory, queue) = (self.memory.guest(), &mut self.queue);
        let before = queue.ring.next_used();
        let room = usize::from(queue.under_way()).min(chains.len());
        let chains = &chains[..room];
        let done = match together {
            true => queue.put_together(memory, chains),
            false => chains.iter().try_for_each(|(head, written)| queue.put(memory, *head, *written)),
        };
        // A used ring in memory accepts any head of the table, and no other.
        let known = chains.iter().all(|(head, _)| *head < queue.size());
        assert!(done.is_ok() || !known, "{done:?}");
        if known {
            assert_eq!(queue.ring.next_used(), before.wrapping_add(room as u16));
            let entry = |number: u16| {
                let slot = u64::from(before.wrapping_add(number) % queue.size());
                let at = GuestAddress(queue.ring.used_ring() + 4 + 8 * slot);
                memory.read_obj::<[u32; 2]>(at).expect("rings in memory")
            };
            for (number, (head, written)) in (0..).zip(chains) {
                assert_eq!(entry(number), [u32::from(*head), *written as u32]);
            }
        }
        check_order(queue);
        queue.wants_interrupt(memory).expect("rings in memory")
    }

    /// Enables or disables notifications.
    pub fn set_notifications(&mut self, wanted: bool) {
        let memory = self.memory.guest();
        match wanted {
            true => drop(self.queue.enable_notifications(memory).expect("rings in memory")),
            false => self.queue.disable_notifications(memory).expect("rings in memory"),
        }
    }

    /// Saves the queue and continues with the saved state.
    pub fn reload(&mut self) {
        let state = self.queue.save();
        let text = serde_json::to_string(&state).expect("numbers");
        let state = serde_json::from_str(&text).expect("what was just written");
        let max = self.queue.ring.max_size();
        self.queue = VirtQueue::restored(&state, max).expect("what was a queue is one");
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.memory.spare();
    }
}
