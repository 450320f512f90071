//! The transport-reset event (virtio 1.2, section 5.10.6.7): the guest hears that its connections are gone and its CID may be
//! another.
//!
//! ```text
//!   restore ──> Pending ──a buffer is posted: event, connections dropped──> Told ──another is posted, or time──> Settled
//! ```
//!
//! A guest drops its connections as it handles the event, whenever they were made. So while it is told, nothing else goes
//! either way; Linux posts the event's buffer again when it is done.

use std::time::{Duration, Instant};

use crate::devices::virtio::queue::VirtQueue;
use crate::devices::virtio::{Broken, Io, Next};
use crate::memory::ram::GuestRam;

/// `VIRTIO_VSOCK_EVENT_TRANSPORT_RESET`
const TRANSPORT_RESET: [u8; 4] = 0u32.to_le_bytes();
/// How long a guest gets to handle it. One that posts no buffer again is not worth more.
const PATIENCE: Duration = Duration::from_secs(1);

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
}

/// What a look at the event queue came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Nothing stands in the way of connections.
    Clear,
    /// The guest has just been told.
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
                if posted(&mut io.queues[queue], io.ram)? > before || Instant::now() >= until {
                    *self = Self::Settled;
                    io.queues[queue].hush(io.ram.guest())?;
                    return Ok(Seen::Clear);
                }
                Ok(Seen::Busy(Next::At(until)))
            }
        }
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

    #[test]
    fn a_guest_that_posts_the_buffer_again_at_once_is_not_waited_for() {
        let ram = GuestRam::reserve(1 << 20).unwrap();
        Backing::Fresh.map(&ram).unwrap();
        let mut queue = VirtQueue::new(16);
        queue.ring.set_desc_table_address(Some(TABLE), Some(0));
        queue.ring.set_avail_ring_address(Some(RINGS), Some(0));
        // The used ring lies where the available ring does, and is one ahead of it: with the event in it, the buffer is
        // available once more, before the device has done anything else.
        queue.ring.set_used_ring_address(Some(RINGS), Some(0));
        queue.ring.set_next_used(1);
        queue.ring.set_ready(true);
        let mut descriptor = [0; 16];
        descriptor[..8].copy_from_slice(&BUFFER.to_le_bytes());
        descriptor[8..12].copy_from_slice(&4u32.to_le_bytes());
        descriptor[12..14].copy_from_slice(&WRITE.to_le_bytes());
        ram.guest().write_slice(&descriptor, GuestAddress(TABLE.into())).unwrap();
        ram.guest().write_obj(1u16, GuestAddress(u64::from(RINGS) + 2)).unwrap();

        let (mut queues, interrupt) = ([queue], Interrupt::new().unwrap());
        let mut io = Io { ram: &ram, queues: &mut queues, interrupt: &interrupt, features: 0 };
        let mut reset = Reset::Pending;
        assert_eq!(reset.look(&mut io, 0).unwrap(), Seen::Told);
        assert_eq!(reset.look(&mut io, 0).unwrap(), Seen::Clear);
    }
}
