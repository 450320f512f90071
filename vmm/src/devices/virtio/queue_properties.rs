//! Arithmetic of queues, compared with models whose indices never wrap. Guest memory holds the low 16 bits of
//! an index.

use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Guest memory for the largest queue, and the addresses of its rings.
const MEMORY: u64 = 1 << 20;
const TABLE: u64 = 0;
const AVAILABLE: u64 = 0x8_0000;
const USED: u64 = 0xa_0000;
const BUFFER: u64 = 0xf_0000;

/// A queue and its driver, which has offered `offered` chains in all.
pub(super) struct Pair {
    pub(super) memory: GuestMemory,
    pub(super) queue: VirtQueue,
    size: u16,
    offered: u64,
}

impl Pair {
    /// A queue after `start` chains, all of which have come back.
    pub(super) fn new(size: u16, start: u64, event_idx: bool) -> Self {
        let memory = GuestMemory::from_ranges(&[(GuestAddress(0), MEMORY as usize)]).unwrap();
        let mut queue = VirtQueue::new(size);
        place(&mut queue, [TABLE, AVAILABLE, USED]);
        queue.ring.set_event_idx(event_idx);
        queue.ring.set_next_avail(start as u16);
        queue.ring.set_next_used(start as u16);
        queue.ring.set_ready(true);
        assert!(queue.is_usable(&memory));
        let pair = Self { memory, queue, size, offered: start };
        pair.say_offered(start);
        pair
    }

    fn slot(&self, number: u64) -> u64 {
        number % u64::from(self.size)
    }

    /// Makes a chain available. Its head is its number, as far as heads reach.
    pub(super) fn offer(&mut self) {
        let head = self.slot(self.offered) as u16 ^ (self.size - 1);
        self.describe(head, BUFFER, 1);
        self.write(AVAILABLE + 4 + 2 * self.slot(self.offered), head);
        self.offered += 1;
        self.say_offered(self.offered);
    }

    fn describe(&self, index: u16, at: u64, len: u32) {
        let entry = GuestAddress(TABLE + 16 * u64::from(index));
        self.memory.write_obj([at.to_le(), u64::from(len).to_le()], entry).unwrap();
    }

    fn say_offered(&self, index: u64) {
        self.write(AVAILABLE + 2, index as u16);
    }

    fn write(&self, at: u64, value: u16) {
        self.memory.write_obj(value.to_le(), GuestAddress(at)).unwrap();
    }

    fn read(&self, at: u64) -> u16 {
        u16::from_le(self.memory.read_obj(GuestAddress(at)).unwrap())
    }

    pub(super) fn pop(&mut self) -> Option<u16> {
        self.queue.pop(&self.memory).unwrap().map(|chain| chain.head)
    }

    /// Puts `count` chains back, one by one or together.
    fn put(&mut self, count: u16, together: bool) {
        let chains: Vec<_> = (0..count).map(|number| (number % self.size, 1)).collect();
        if together {
            self.queue.put_together(&self.memory, &chains).unwrap();
        } else {
            chains.iter().for_each(|(head, len)| self.queue.put(&self.memory, *head, *len).unwrap());
        }
    }

    /// Replaces the queue by one restored from its saved state.
    pub(super) fn reload(&mut self) {
        let text = serde_json::to_string(&self.queue.save()).unwrap();
        self.queue = VirtQueue::restored(&serde_json::from_str(&text).unwrap(), self.size).unwrap();
    }
}

/// Writes the rings' addresses as drivers do, one half at a time.
pub(super) fn place(queue: &mut VirtQueue, [table, available, used]: [u64; 3]) {
    let ring = &mut queue.ring;
    let (low, high) = (|at: u64| Some(at as u32), |at: u64| Some((at >> 32) as u32));
    ring.set_desc_table_address(low(table), None);
    ring.set_desc_table_address(None, high(table));
    ring.set_avail_ring_address(low(available), None);
    ring.set_avail_ring_address(None, high(available));
    ring.set_used_ring_address(low(used), None);
    ring.set_used_ring_address(None, high(used));
}

/// Sizes that a queue may have.
fn size() -> impl Strategy<Value = u16> {
    (0..16u32).prop_map(|shift| 1 << shift)
}

/// Numbers of chains before the test: indices that wrap at once, or soon.
fn start() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u16>().prop_map(u64::from), 0xffe0..=0x1_0000u64]
}

/// A number near one of `borders`, or any number.
fn near(borders: &'static [u64]) -> impl Strategy<Value = u64> {
    let beside = (prop::sample::select(borders), -0x40..0x40i64, 0..=16u32)
        .prop_map(|(border, by, shift)| border.wrapping_add_signed(by << shift));
    prop_oneof![4 => beside, 1 => any::<u64>()]
}

#[derive(Clone, Debug)]
enum QueueStep {
    Offer(u16),
    Pop(u16),
    Unpop,
    Put(u16, bool),
    Reload,
}

fn step() -> impl Strategy<Value = QueueStep> {
    let count = || prop_oneof![0..9u16, any::<u16>().prop_map(|count| count % 700)];
    prop_oneof![
        count().prop_map(QueueStep::Offer),
        count().prop_map(QueueStep::Pop),
        Just(QueueStep::Unpop),
        (count(), any::<bool>()).prop_map(|(count, together)| QueueStep::Put(count, together)),
        Just(QueueStep::Reload),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// For any size and start, and for saves at any time.
    #[test]
    fn chains_keep_the_order_in_which_they_were_offered(
        size in size(), start in start(), event_idx: bool, steps in vec(step(), 1..30)
    ) {
        let mut pair = Pair::new(size, start, event_idx);
        let (mut waiting, mut taken, mut returned) = (VecDeque::new(), VecDeque::new(), start);
        for step in steps {
            match step {
                QueueStep::Offer(count) => {
                    let room = usize::from(size) - waiting.len() - taken.len();
                    for _ in 0..room.min(count.into()) {
                        waiting.push_back(pair.slot(pair.offered) as u16 ^ (size - 1));
                        pair.offer();
                    }
                }
                QueueStep::Pop(count) => for _ in 0..count.min(waiting.len() as u16 + 1) {
                    let next = waiting.pop_front();
                    prop_assert_eq!(pair.pop(), next);
                    taken.extend(next);
                },
                QueueStep::Unpop => if let Some(last) = taken.pop_back() {
                    pair.queue.unpop();
                    waiting.push_front(last);
                },
                QueueStep::Put(count, together) => {
                    let heads: Vec<u16> = taken.drain(..taken.len().min(count.into())).collect();
                    let chains: Vec<_> = heads.iter().map(|head| (*head, usize::from(*head) + 1)).collect();
                    let mut put = |head, len| pair.queue.put(&pair.memory, head, len).unwrap();
                    match together {
                        true => pair.queue.put_together(&pair.memory, &chains).unwrap(),
                        false => chains.iter().for_each(|(head, len)| put(*head, *len)),
                    }
                    for head in heads {
                        let entry = USED + 4 + 8 * pair.slot(returned);
                        prop_assert_eq!([pair.read(entry), pair.read(entry + 4)], [head, head + 1]);
                        returned += 1;
                    }
                    if returned > start {
                        prop_assert_eq!(pair.read(USED + 2), returned as u16);
                    }
                }
                QueueStep::Reload => pair.reload(),
            }
        }
    }

    #[test]
    fn index_jump_beyond_the_size_is_refused(
        size in size(), start in start(), jump in prop_oneof![any::<u16>(), 0..300u16]
    ) {
        let mut pair = Pair::new(size, start, false);
        pair.describe(0, BUFFER, 1); // which every entry of the ring names, as long as nobody writes there
        pair.say_offered(start + u64::from(jump));
        if jump > size {
            prop_assert!(pair.queue.pop(&pair.memory).is_err());
        } else {
            let chains = (0..=size).take_while(|_| pair.pop().is_some()).count();
            prop_assert_eq!(chains, usize::from(jump));
        }
    }

    /// `vring_need_event` (virtio 1.2, section 2.7.10): interrupts if the driver's entry is among those put
    /// since the last check.
    #[test]
    fn driver_is_interrupted_for_the_chain_that_it_named(
        size in size(), start in start(), batches in vec((0..600u16, any::<bool>(), -3..600i32), 1..5)
    ) {
        let mut pair = Pair::new(size, start, true);
        let mut put = start;
        for (count, together, ahead) in batches {
            let named = put.wrapping_add_signed(ahead.into()) as u16;
            pair.write(AVAILABLE + 4 + 2 * u64::from(size), named);
            pair.put(count, together);
            let before = put;
            put += u64::from(count);
            let among = (before..put).any(|number| number as u16 == named);
            prop_assert_eq!(pair.queue.wants_interrupt(&pair.memory).unwrap(), among);
        }
    }

    #[test]
    fn without_event_idx_a_flag_decides(size in size(), start in start(), flags: u16, count in 0..600u16) {
        let mut pair = Pair::new(size, start, false);
        pair.write(AVAILABLE, flags);
        pair.put(count, false);
        let wanted = count > 0 && flags.is_multiple_of(2);
        prop_assert_eq!(pair.queue.wants_interrupt(&pair.memory).unwrap(), wanted);
        pair.queue.disable_notifications(&pair.memory).unwrap();
        prop_assert_eq!(pair.read(USED), 1);
        pair.queue.enable_notifications(&pair.memory).unwrap();
        prop_assert_eq!(pair.read(USED), 0);
    }

    /// The device asks for a notification of the first chain that it has not taken, and learns at once of one
    /// that is available.
    #[test]
    fn device_asks_for_the_next_chain(size in size(), start in start(), offered in 0..600u16, popped: u16) {
        let mut pair = Pair::new(size, start, true);
        let offered = offered.min(size);
        let popped = popped % (offered + 1);
        (0..offered).for_each(|_| pair.offer());
        for _ in 0..popped {
            pair.pop().unwrap();
        }
        prop_assert_eq!(pair.queue.enable_notifications(&pair.memory).unwrap(), popped < offered);
        let named = pair.read(USED + 4 + 8 * u64::from(size));
        prop_assert_eq!(named, (start + u64::from(popped)) as u16);
    }

    #[test]
    fn rings_that_wrap_or_leave_memory_are_refused(
        size in size(),
        table in near(&[0, MEMORY, 2 * MEMORY, 3 * MEMORY, 1 << 32]),
        available in near(&[0, MEMORY, 2 * MEMORY, 3 * MEMORY, 1 << 32]),
        used in near(&[0, MEMORY, 2 * MEMORY, 3 * MEMORY, 1 << 32]),
    ) {
        // Two regions with a hole between them.
        let ranges = [(GuestAddress(0), MEMORY as usize), (GuestAddress(2 * MEMORY), MEMORY as usize)];
        let memory = GuestMemory::from_ranges(&ranges).unwrap();
        let [table, available, used] = [table & !15, available & !1, used & !3];
        let mut queue = VirtQueue::new(size);
        place(&mut queue, [table, available, used]);
        queue.ring.set_ready(true);
        let entries = u128::from(size);
        let rings = [(table, 16 * entries), (available, 6 + 2 * entries), (used, 6 + 8 * entries)];
        let inside = rings.iter().all(|(at, len)| {
            let (at, memory) = (u128::from(*at), u128::from(MEMORY));
            at + len <= memory || 2 * memory <= at && at + len <= 3 * memory
        });
        prop_assert_eq!(queue.is_usable(&memory), inside);
    }

    #[test]
    fn buffer_outside_memory_is_refused(at in near(&[0, MEMORY, 1 << 32]), len in near(&[0, MEMORY])) {
        let mut pair = Pair::new(4, 0, false);
        pair.offer();
        let len = len as u32;
        pair.describe(3, at, len);
        let inside = len > 0 && u128::from(at) + u128::from(len) <= u128::from(MEMORY);
        prop_assert_eq!(pair.queue.pop(&pair.memory).is_ok(), inside);
    }

    #[test]
    fn size_is_a_power_of_two_up_to_the_maximum(most in size(), asked in prop_oneof![size(), any::<u16>()]) {
        let mut queue = VirtQueue::new(most);
        queue.ring.set_size(asked);
        let fits = asked.is_power_of_two() && asked <= most;
        prop_assert_eq!(queue.size(), if fits { asked } else { most });
    }
}
