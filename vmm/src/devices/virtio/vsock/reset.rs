//! The transport-reset event (virtio 1.2, section 5.10.6.7): it tells the guest that its connections are
//! gone and that its CID may have changed.
//!
//! ```text
//!   restore ──> Pending ──a buffer is posted: event, connections dropped──> Delivered ──another is posted──> Settled
//!                                                                                └──time──> Overdue ──another is posted:
//!                                                                                           connections dropped──> Settled
//! ```
//!
//! When a guest handles the event it drops all its connections, new ones too, and does not report that.
//! While the event is handled, no packet goes either way; Linux posts the event's buffer again when it is
//! done. If the guest takes too long, the device continues. It then drops the connections made meanwhile
//! when the guest posts the buffer, because their other ends would wait forever.

use std::time::{Duration, Instant};

use crate::devices::virtio::queue::VirtQueue;
use crate::devices::virtio::{DeviceFailed, DeviceIo, NextTurn};
use crate::memory::ram::GuestRam;

/// `VIRTIO_VSOCK_EVENT_TRANSPORT_RESET`
const TRANSPORT_RESET: [u8; 4] = 0u32.to_le_bytes();
/// Longest wait for a guest that may never post a buffer again.
const PATIENCE: Duration = Duration::from_secs(5);

/// Progress of the event.
#[derive(Debug, Clone, Copy)]
pub(super) enum TransportReset {
    Settled,
    Pending,
    /// The guest has the event; so many buffers were posted then.
    Delivered {
        posted: u16,
        deadline: Instant,
    },
    /// As [`TransportReset::Delivered`], after the deadline.
    Overdue {
        posted: u16,
    },
}

/// Result of a check of the event queue.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ResetStatus {
    /// Connections may work.
    Clear,
    /// The guest has lost all connections, or will: it has just got the event, or was slow to handle it.
    ConnectionsLost,
    /// The guest handles the event; continue at this time.
    InProgress(NextTurn),
}

impl TransportReset {
    /// Returns whether the guest has yet to get the event.
    pub fn is_pending(self) -> bool {
        matches!(self, Self::Pending)
    }

    /// Checks the event queue, and delivers a pending event.
    pub fn check(&mut self, io: &mut DeviceIo<'_>, queue: usize) -> Result<ResetStatus, DeviceFailed> {
        match *self {
            Self::Settled => Ok(ResetStatus::Clear),
            Self::Pending => {
                // Counted before the delivery: a quick guest posts the buffer again before this function
                // continues.
                let Some(left) = posted_buffers(&mut io.queues[queue], io.ram)?.checked_sub(1) else {
                    return Ok(ResetStatus::Clear);
                };
                deliver(io, queue)?;
                *self = Self::Delivered { posted: left, deadline: Instant::now() + PATIENCE };
                Ok(ResetStatus::ConnectionsLost)
            }
            Self::Delivered { posted: before, deadline } => {
                if posted_buffers(&mut io.queues[queue], io.ram)? > before {
                    self.finish(io, queue)?;
                    return Ok(ResetStatus::Clear);
                }
                if Instant::now() < deadline {
                    return Ok(ResetStatus::InProgress(NextTurn::At(deadline)));
                }
                *self = Self::Overdue { posted: before };
                Ok(ResetStatus::Clear)
            }
            Self::Overdue { posted: before } => {
                if posted_buffers(&mut io.queues[queue], io.ram)? > before {
                    self.finish(io, queue)?;
                    return Ok(ResetStatus::ConnectionsLost);
                }
                Ok(ResetStatus::Clear)
            }
        }
    }

    fn finish(&mut self, io: &mut DeviceIo<'_>, queue: usize) -> Result<(), DeviceFailed> {
        *self = Self::Settled;
        io.queues[queue].disable_notifications(io.ram.guest())
    }
}

fn deliver(io: &mut DeviceIo<'_>, queue: usize) -> Result<(), DeviceFailed> {
    let memory = io.ram.guest();
    let events = &mut io.queues[queue];
    let Some(mut chain) = events.pop(memory)? else { return Ok(()) };
    if chain.writable.write(&TRANSPORT_RESET) < TRANSPORT_RESET.len() {
        return Err(DeviceFailed("an event buffer is shorter than an event"));
    }
    events.put(memory, chain.head, TRANSPORT_RESET.len())?;
    io.interrupt_for(queue)
}

/// Returns how many buffers the guest has posted, and enables notifications for the next one.
fn posted_buffers(queue: &mut VirtQueue, ram: &GuestRam) -> Result<u16, DeviceFailed> {
    let memory = ram.guest();
    let mut posted = 0;
    // With event indices the guest notifies for buffers after the last one that was taken.
    while queue.next_chain(memory)?.is_some() {
        posted += 1;
    }
    for _ in 0..posted {
        queue.unpop();
    }
    Ok(posted)
}

#[cfg(test)]
mod tests {
    use virtio_queue::QueueT;
    use vm_memory::{Bytes, GuestAddress};

    use super::*;
    use crate::counters::device::{DeviceCounters, DeviceOperations};
    use crate::devices::virtio::interrupt::Interrupt;
    use crate::devices::virtio::testing::WRITE;
    use crate::memory::backing::Backing;

    const TABLE: u32 = 0x1000;
    const RINGS: u32 = 0x2000;
    const BUFFER: u64 = 0x3000;

    /// Returns the memory of a guest that has posted a buffer, and the queue with its used ring at `used`.
    fn guest(used: u32) -> (GuestRam, VirtQueue) {
        let ram = GuestRam::reserve(1 << 20).unwrap();
        Backing::Fresh.map(&ram).unwrap();
        let mut queue = VirtQueue::new(16);
        queue.ring.set_desc_table_address(Some(TABLE), Some(0));
        queue.ring.set_avail_ring_address(Some(RINGS), Some(0));
        queue.ring.set_used_ring_address(Some(used), Some(0));
        queue.ring.set_ready(true);
        let mut descriptor = [0; 16];
        descriptor[..8].copy_from_slice(&BUFFER.to_le_bytes());
        descriptor[8..12].copy_from_slice(&4u32.to_le_bytes());
        descriptor[12..14].copy_from_slice(&WRITE.to_le_bytes());
        ram.guest().write_slice(&descriptor, GuestAddress(TABLE.into())).unwrap();
        post(&ram, 1);
        (ram, queue)
    }

    /// Posts the same buffer `count` times.
    fn post(ram: &GuestRam, count: u16) {
        ram.guest().write_obj(count, GuestAddress(u64::from(RINGS) + 2)).unwrap();
    }

    #[test]
    fn guest_that_posts_the_buffer_again_at_once_causes_no_wait() {
        // The used ring overlaps the available ring and is one ahead. With the event in it, the buffer is
        // available again before the device has done anything else.
        let (ram, mut queue) = guest(RINGS);
        queue.ring.set_next_used(1);
        let (mut queues, interrupt) = ([queue], Interrupt::new().unwrap());
        let mut io = DeviceIo {
            ram: &ram,
            queues: &mut queues,
            interrupt: &interrupt,
            counters: &DeviceCounters::new(DeviceOperations::NONE),
            features: 0,
            config_changed: false,
        };
        let mut reset = TransportReset::Pending;
        assert_eq!(reset.check(&mut io, 0).unwrap(), ResetStatus::ConnectionsLost);
        assert_eq!(reset.check(&mut io, 0).unwrap(), ResetStatus::Clear);
    }

    #[test]
    fn connections_made_before_a_slow_guest_handles_the_event_are_dropped() {
        let (ram, queue) = guest(RINGS + 0x800);
        let (mut queues, interrupt) = ([queue], Interrupt::new().unwrap());
        let mut io = DeviceIo {
            ram: &ram,
            queues: &mut queues,
            interrupt: &interrupt,
            counters: &DeviceCounters::new(DeviceOperations::NONE),
            features: 0,
            config_changed: false,
        };
        let mut reset = TransportReset::Pending;
        assert_eq!(reset.check(&mut io, 0).unwrap(), ResetStatus::ConnectionsLost);
        assert!(matches!(reset.check(&mut io, 0).unwrap(), ResetStatus::InProgress(NextTurn::At(_))));
        // The deadline has passed.
        reset = TransportReset::Delivered { posted: 0, deadline: Instant::now() };
        assert_eq!(reset.check(&mut io, 0).unwrap(), ResetStatus::Clear);
        assert_eq!(reset.check(&mut io, 0).unwrap(), ResetStatus::Clear);
        post(&ram, 2);
        assert_eq!(reset.check(&mut io, 0).unwrap(), ResetStatus::ConnectionsLost);
        assert_eq!(reset.check(&mut io, 0).unwrap(), ResetStatus::Clear);
        assert!(matches!(reset, TransportReset::Settled));
    }
}
