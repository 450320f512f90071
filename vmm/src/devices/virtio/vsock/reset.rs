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
                if posted(&mut io.queues[queue], io.ram)? == 0 {
                    return Ok(Seen::Clear);
                }
                tell(io, queue)?;
                let posted = posted(&mut io.queues[queue], io.ram)?;
                *self = Self::Told { posted, until: Instant::now() + PATIENCE };
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
