//! The transport-reset event (virtio 1.2, section 5.10.6.7): the guest hears that its connections are gone and its CID may be
//! another.
//!
//! ```text
//!   restore ──> Pending ──a buffer is posted: event, connections dropped──> Told ──another is posted──> Settled
//!                                                                            └──time──> Overdue ──another is posted:
//!                                                                                       connections dropped──> Settled
//! ```
//!
//! A guest drops its connections as it handles the event, whenever they were made, and says nothing of it. So while it is told,
//! nothing else goes either way; Linux posts the event's buffer again when it is done. From one that takes its time connections
//! that were made meanwhile are dropped on this side too, or their other ends would wait for ever.

use std::time::{Duration, Instant};

use crate::devices::virtio::queue::VirtQueue;
use crate::devices::virtio::{Broken, Io, Next};
use crate::memory::ram::GuestRam;

/// `VIRTIO_VSOCK_EVENT_TRANSPORT_RESET`
const TRANSPORT_RESET: [u8; 4] = 0u32.to_le_bytes();
/// How long a guest that may never post a buffer again keeps others waiting.
const PATIENCE: Duration = Duration::from_secs(5);

/// How far the guest has come to know of it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reset {
    Settled,
    Pending,
    /// When there were so many buffers.
    Told {
        posted: u16,
        until: Instant,
    },
    /// As above, a while ago.
    Overdue {
        posted: u16,
    },
}

/// What a look at the event queue came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Nothing stands in the way of connections.
    Clear,
    /// What connections there are the guest has not, or will not have: it has just been told, or was slow to handle it.
    Told,
    /// It handles the event; go on then.
    Busy(Next),
}

impl Reset {
    /// Whether the guest has yet to learn of it.
    pub fn is_pending(self) -> bool {
        matches!(self, Self::Pending)
    }

    /// Looks at the event queue.
    pub fn look(&mut self, io: &mut Io<'_>, queue: usize) -> Result<Seen, Broken> {
        match *self {
            Self::Settled => Ok(Seen::Clear),
            Self::Pending => {
                // Counted before the guest is told: a quick one has the buffer posted again before this goes on.
                let Some(left) = posted(&mut io.queues[queue], io.ram)?.checked_sub(1) else {
                    return Ok(Seen::Clear);
                };
                tell(io, queue)?;
                *self = Self::Told { posted: left, until: Instant::now() + PATIENCE };
                Ok(Seen::Told)
            }
            Self::Told { posted: before, until } => {
                if posted(&mut io.queues[queue], io.ram)? > before {
                    self.settle(io, queue)?;
                    return Ok(Seen::Clear);
                }
                if Instant::now() < until {
                    return Ok(Seen::Busy(Next::At(until)));
                }
                *self = Self::Overdue { posted: before };
                Ok(Seen::Clear)
            }
            Self::Overdue { posted: before } => {
                if posted(&mut io.queues[queue], io.ram)? > before {
                    self.settle(io, queue)?;
                    return Ok(Seen::Told);
                }
                Ok(Seen::Clear)
            }
        }
    }

    fn settle(&mut self, io: &mut Io<'_>, queue: usize) -> Result<(), Broken> {
        *self = Self::Settled;
        io.queues[queue].hush(io.ram.guest())
    }
}

fn tell(io: &mut Io<'_>, queue: usize) -> Result<(), Broken> {
    let memory = io.ram.guest();
    let queue = &mut io.queues[queue];
    let Some(mut chain) = queue.pop(memory)? else { return Ok(()) };
    if chain.writable.write(&TRANSPORT_RESET) < TRANSPORT_RESET.len() {
        return Err(Broken("an event buffer that holds no event"));
    }
    queue.put(memory, chain.head, TRANSPORT_RESET.len())?;
    if queue.wants_interrupt(memory)? {
        io.interrupt.queue();
    }
    Ok(())
}

/// How many buffers the guest has posted. It notifies when it posts one more.
fn posted(queue: &mut VirtQueue, ram: &GuestRam) -> Result<u16, Broken> {
    let memory = ram.guest();
    let mut posted = 0;
    loop {
        // With event indices the guest notifies for what comes after the last that was taken.
        while queue.pop(memory)?.is_some() {
            posted += 1;
        }
        if !queue.listen(memory)? {
            break;
        }
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
    use crate::devices::virtio::interrupt::Interrupt;
    use crate::devices::virtio::testing::WRITE;
    use crate::memory::backing::Backing;

    const TABLE: u32 = 0x1000;
    const RINGS: u32 = 0x2000;
    const BUFFER: u64 = 0x3000;

    /// The memory of a guest that has posted a buffer, and the queue, its used ring at `used`.
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

    /// So many buffers have been posted, all the same one.
    fn post(ram: &GuestRam, count: u16) {
        ram.guest().write_obj(count, GuestAddress(u64::from(RINGS) + 2)).unwrap();
    }

    #[test]
    fn a_guest_that_posts_the_buffer_again_at_once_is_not_waited_for() {
        // The used ring lies where the available ring does, and is one ahead of it: with the event in it, the buffer is
        // available once more, before the device has done anything else.
        let (ram, mut queue) = guest(RINGS);
        queue.ring.set_next_used(1);
        let (mut queues, interrupt) = ([queue], Interrupt::new().unwrap());
        let mut io =
            Io { ram: &ram, queues: &mut queues, interrupt: &interrupt, features: 0, config_changed: false };
        let mut reset = Reset::Pending;
        assert_eq!(reset.look(&mut io, 0).unwrap(), Seen::Told);
        assert_eq!(reset.look(&mut io, 0).unwrap(), Seen::Clear);
    }

    #[test]
    fn what_was_connected_before_a_slow_guest_handled_the_event_is_dropped() {
        let (ram, queue) = guest(RINGS + 0x800);
        let (mut queues, interrupt) = ([queue], Interrupt::new().unwrap());
        let mut io =
            Io { ram: &ram, queues: &mut queues, interrupt: &interrupt, features: 0, config_changed: false };
        let mut reset = Reset::Pending;
        assert_eq!(reset.look(&mut io, 0).unwrap(), Seen::Told);
        assert!(matches!(reset.look(&mut io, 0).unwrap(), Seen::Busy(Next::At(_))));
        // Its time is over.
        reset = Reset::Told { posted: 0, until: Instant::now() };
        assert_eq!(reset.look(&mut io, 0).unwrap(), Seen::Clear);
        assert_eq!(reset.look(&mut io, 0).unwrap(), Seen::Clear);
        post(&ram, 2);
        assert_eq!(reset.look(&mut io, 0).unwrap(), Seen::Told);
        assert_eq!(reset.look(&mut io, 0).unwrap(), Seen::Clear);
        assert!(matches!(reset, Reset::Settled));
    }
}
