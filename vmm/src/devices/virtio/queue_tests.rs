//! Queues in memory that page faults fill, whose driver changes a chain while the device reads it.

use std::sync::{Arc, OnceLock};

use virtio_bindings::bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_WRITE};
use vm_memory::GuestMemoryBackend;

use super::super::chain::UNAVAILABLE;
use super::properties::place;
use super::*;
use crate::error::Error;
use crate::memory::PAGE;
use crate::memory::backing::Backing;
use crate::memory::lazy::fault_service::Service;
use crate::memory::lazy::faults::FaultHandler;
use crate::memory::lazy::source::{Chunk as Content, PageSource, TestSource};
use crate::memory::lazy::userfault::Userfault;
use crate::memory::ram::GuestRam;
use crate::testing::wait_until;

const CHUNK: u64 = 64 << 10;
const LEN: u64 = 4 << 20;
const RINGS: [u64; 3] = [0, 0x8000, 0xa000];
/// Chunks with an indirect table, with a buffer, and a damaged chunk.
const TABLE: u64 = 5;
const BUFFER: u64 = 6;
const DAMAGED: u64 = 17;

type OnTable = Box<dyn Fn() + Send + Sync>;

/// Zeros, except a descriptor at the start of the table's chunk. Calls `hook` before it reads that chunk.
fn source(hook: &Arc<OnceLock<OnTable>>) -> Box<dyn PageSource> {
    let hook = Arc::clone(hook);
    let read = move |chunk: u64, into: &mut [u8]| match chunk {
        DAMAGED => Err(Error::snapshot("/the/pack", "is damaged")),
        TABLE => {
            hook.get().into_iter().for_each(|hook| hook());
            into.fill(0);
            into[..16].copy_from_slice(&descriptor(BUFFER * CHUNK, 24, 0));
            Ok(Content::Bytes)
        }
        _ => Ok(Content::Zero),
    };
    Box::new(TestSource { len: LEN, chunk_len: CHUNK, read })
}

fn descriptor(at: u64, len: u32, flags: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&at.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes
}

#[test]
fn head_that_changes_while_its_table_is_fetched_is_used_as_it_was_read() {
    let hook = Arc::new(OnceLock::new());
    let service = Arc::new(Service::new(source(&hook)).unwrap());
    let ram = GuestRam::reserve(LEN).unwrap();
    Backing::Lazy { handler: Arc::clone(&service) as Arc<dyn FaultHandler>, pages: None }.map(&ram).unwrap();
    let write = |ram: &GuestRam, at, bytes: &[u8]| ram.guest().write_slice(bytes, GuestAddress(at)).unwrap();
    let indirect = |chunk: u64| descriptor(chunk * CHUNK, 16, VRING_DESC_F_INDIRECT as u16);
    write(&ram, RINGS[0], &indirect(TABLE));
    write(&ram, RINGS[1] + 2, &1_u16.to_le_bytes());
    let memory = std::sync::Mutex::new(Some(ram.clone()));
    let on_table: OnTable = Box::new(move || {
        if let Some(ram) = memory.lock().unwrap().take() {
            write(&ram, RINGS[0], &indirect(DAMAGED));
        }
    });
    assert!(hook.set(on_table).is_ok());
    let mut queue = VirtQueue::new(8);
    place(&mut queue, RINGS);
    queue.ring.set_ready(true);
    let chain = queue.pop(ram.guest()).unwrap().expect("a chain");
    assert_eq!((chain.readable.len(), chain.writable.len()), (24, 0));
    // A second read finds the damaged chunk, which ends the VM without a signal.
    queue.unpop();
    assert_eq!(queue.pop(ram.guest()).unwrap_err().0, UNAVAILABLE.0);
}

/// A queue with rings at these addresses, in new memory.
fn queue_at(rings: [u64; 3]) -> (GuestRam, VirtQueue) {
    let service = Arc::new(Service::new(source(&Arc::default())).unwrap());
    let ram = GuestRam::reserve(LEN).unwrap();
    Backing::Lazy { handler: service as Arc<dyn FaultHandler>, pages: None }.map(&ram).unwrap();
    let mut queue = VirtQueue::new(8);
    place(&mut queue, rings);
    queue.ring.set_ready(true);
    (ram, queue)
}

#[test]
fn more_chains_than_the_queue_has_entries_break_it() {
    let (ram, mut queue) = queue_at(RINGS);
    let set = |at, bytes: &[u8]| ram.guest().write_slice(bytes, GuestAddress(at)).unwrap();
    set(RINGS[0], &descriptor(BUFFER * CHUNK, 24, 0));
    let offer = |index: u16| set(RINGS[1] + 2, &index.to_le_bytes());
    offer(8);
    for _ in 0..8 {
        assert!(queue.pop(ram.guest()).unwrap().is_some());
    }
    assert!(queue.pop(ram.guest()).unwrap().is_none());
    offer(9);
    let error = queue.pop(ram.guest()).unwrap_err();
    assert_eq!((error.0, queue.under_way()), ("more chains in use than the queue has entries", 8));
    let mut state = queue.save();
    assert!(VirtQueue::restored(&state, 8).is_some());
    state.0.next_used = state.0.next_used.wrapping_sub(1);
    assert!(VirtQueue::restored(&state, 8).is_none());
    // The driver may reuse an entry that came back.
    queue.put(ram.guest(), 0, 0).unwrap();
    assert!(queue.pop(ram.guest()).unwrap().is_some());
}

#[test]
fn next_chain_enables_notifications_only_if_there_is_no_chain() {
    let (ram, mut queue) = queue_at(RINGS);
    let set = |at, bytes: &[u8]| ram.guest().write_slice(bytes, GuestAddress(at)).unwrap();
    let notifies = || ram.guest().read_obj::<u16>(GuestAddress(RINGS[2])).unwrap() == 0;
    set(RINGS[0], &descriptor(BUFFER * CHUNK, 24, 0));
    set(RINGS[1] + 2, &1_u16.to_le_bytes());
    queue.disable_notifications(ram.guest()).unwrap();
    assert!(queue.next_chain(ram.guest()).unwrap().is_some() && !notifies());
    assert!(queue.next_chain(ram.guest()).unwrap().is_none() && notifies());
    set(RINGS[1] + 2, &2_u16.to_le_bytes());
    assert!(queue.next_chain(ram.guest()).unwrap().is_some());
}

/// The used ring's page is missing, so enabling notifications faults, and the driver adds a chain then.
#[test]
fn chain_added_while_notifications_are_enabled_is_taken() {
    for event_idx in [false, true] {
        let memory = GuestMemory::from_ranges(&[(GuestAddress(0), LEN as usize)]).unwrap();
        let set = |at, bytes: &[u8]| memory.write_slice(bytes, GuestAddress(at)).unwrap();
        set(RINGS[0], &descriptor(BUFFER * CHUNK, 24, 0));
        set(RINGS[1], &[0; 6]);
        let mut queue = VirtQueue::new(8);
        place(&mut queue, RINGS);
        queue.ring.set_event_idx(event_idx);
        queue.ring.set_ready(true);
        let used = memory.get_host_address(GuestAddress(RINGS[2])).unwrap() as u64;
        let faults = Userfault::new().unwrap();
        faults.register(used, PAGE).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                wait_until("notifications are enabled", || faults.has_faults());
                set(RINGS[1] + 2, &1_u16.to_le_bytes());
                faults.zero(used, PAGE).unwrap();
                faults.wake(used, PAGE).unwrap();
            });
            assert!(queue.next_chain(&memory).unwrap().is_some());
        });
        assert!(queue.next_chain(&memory).unwrap().is_none());
    }
}

type Call = fn(&mut VirtQueue, &GuestMemory) -> Result<(), DeviceFailed>;

/// A process may hold many VMs, so none of these calls may end in a signal.
#[test]
fn ring_in_an_unavailable_chunk_is_an_error_of_every_call() {
    let calls: [(&str, Call); 7] = [
        ("pop", |queue, memory| queue.pop(memory).map(drop)),
        ("put", |queue, memory| queue.put(memory, 0, 0)),
        ("put_together", |queue, memory| queue.put_together(memory, &[(0, 0), (1, 0)])),
        ("wants_interrupt", |queue, memory| queue.wants_interrupt(memory).map(drop)),
        ("next_chain", |queue, memory| queue.next_chain(memory).map(drop)),
        ("disable_notifications", |queue, memory| queue.disable_notifications(memory)),
        ("enable_notifications", |queue, memory| queue.enable_notifications(memory).map(drop)),
    ];
    for ((name, call), damaged) in calls.into_iter().flat_map(|call| (0..3).map(move |ring| (call, ring))) {
        // The last bytes of a ring may lie in the next chunk.
        let sizes = [16 * 8, 6 + 2 * 8, 6 + 8 * 8];
        for at in [DAMAGED * CHUNK, (DAMAGED * CHUNK + 4 - sizes[damaged]).next_multiple_of(16)] {
            let mut rings = RINGS;
            rings[damaged] = at;
            let (ram, mut queue) = queue_at(rings);
            queue.unannounced = 1;
            let done = call(&mut queue, ram.guest()).map_err(|broken| broken.0);
            assert_eq!(done, Err(UNAVAILABLE.0), "{name}, ring {damaged} at {at:#x}");
        }
    }
}

#[test]
fn buffer_or_table_in_an_unavailable_chunk_is_an_error_of_pop() {
    let (start, write) = (DAMAGED * CHUNK, VRING_DESC_F_WRITE as u16);
    for (at, len, flags) in [
        (start, 1, 0),
        (start, 1, write),
        (start - CHUNK, 2 * CHUNK as u32, write),
        (start + CHUNK - 1, 2, 0),
        (start + 16, 16, VRING_DESC_F_INDIRECT as u16),
        (start - 16, 32, VRING_DESC_F_INDIRECT as u16),
    ] {
        let (ram, mut queue) = queue_at(RINGS);
        let memory = ram.guest();
        memory.write_slice(&descriptor(at, len, flags), GuestAddress(RINGS[0])).unwrap();
        memory.write_slice(&1_u16.to_le_bytes(), GuestAddress(RINGS[1] + 2)).unwrap();
        assert_eq!(queue.pop(memory).unwrap_err().0, UNAVAILABLE.0, "{at:#x}, {len} bytes");
    }
}
