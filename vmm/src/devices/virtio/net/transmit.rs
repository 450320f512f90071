//! The guest's frames to the backend. A chain is given back when the backend has its frame, or when there is nothing to be
//! done with it; a frame that the backend has no room for stays in the queue.

use std::io::{self, ErrorKind};
use std::time::Instant;

use super::backend;
use super::backend::Backend;
use super::backoff::Backoff;
use super::header;
use super::header::Header;
use super::pieces::Pieces;
use super::{FRAMES, Pause, SHORTEST, feature};
use crate::config::devices::RateLimit;
use crate::devices::virtio::chain::Chain;
use crate::devices::virtio::limiter::RateLimiter;
use crate::devices::virtio::{Broken, Io};

/// The queue.
const QUEUE: usize = 1;
/// The longest frame: 64 KiB and an Ethernet header.
const LONGEST: usize = 0x1_0000 + 14;

/// The way out.
#[derive(Debug)]
pub(super) struct Transmitter {
    pub limiter: RateLimiter,
    /// The backend had no room.
    pub blocked: bool,
    /// The last turn gave chains back.
    pub has_sent: bool,
    /// Frames that no backend would have taken, or not in this state.
    pub dropped: u64,
    /// The backend fails: it is asked again at a time that was named, whatever it is ready for.
    pub failing: bool,
    /// The last error of the rest of a frame, until someone takes note of it.
    pub error: Option<io::Error>,
    backoff: Backoff,
}

/// What became of a frame.
enum Sent {
    Yes,
    Dropped,
    NoRoom,
    Gone(io::Error),
}

impl Transmitter {
    pub fn new(limit: &RateLimit) -> Self {
        Self {
            limiter: RateLimiter::new(limit),
            blocked: false,
            has_sent: false,
            dropped: 0,
            failing: false,
            error: None,
            backoff: Backoff::default(),
        }
    }

    /// One turn. Frames to a backend that is not `connected` lead nowhere.
    pub fn turn(
        &mut self,
        backend: &mut dyn Backend,
        connected: bool,
        io: &mut Io<'_>,
    ) -> Result<Pause, Broken> {
        let (memory, queue) = (io.ram.guest(), &mut io.queues[QUEUE]);
        (self.blocked, self.has_sent, self.failing) = (false, false, false);
        match if connected { backend.flush() } else { Ok(()) } {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.blocked = true;
                return Ok(Pause::Ready);
            }
            Err(error) if backend::is_gone(&error) => return Ok(Pause::Gone(error)),
            Err(error) => {
                (self.failing, self.error) = (true, Some(error));
                return Ok(self.backoff.failed(Instant::now()).map_or(Pause::Again, Pause::At));
            }
            Ok(()) => self.backoff.succeeded(),
        }
        queue.hush(memory)?;
        let mut done = 0;
        let pause = loop {
            if done == FRAMES {
                break Pause::Again;
            }
            let Some(chain) = queue.pop(memory)? else {
                if queue.listen(memory)? {
                    queue.hush(memory)?;
                    continue;
                }
                break Pause::Ready;
            };
            let head = chain.head;
            let bytes = chain.readable.len().saturating_sub(header::LEN) as u64;
            if let Err(at) = self.limiter.check(Instant::now(), bytes) {
                queue.unpop();
                break Pause::At(at);
            }
            let sent = if connected { send(backend, chain, io.features) } else { Sent::Dropped };
            match sent {
                Sent::Yes => self.limiter.spend(bytes),
                Sent::Dropped | Sent::Gone(_) => self.dropped += 1,
                Sent::NoRoom => {
                    queue.unpop();
                    self.blocked = true;
                    break Pause::Ready;
                }
            }
            queue.put(memory, head, 0)?;
            done += 1;
            if let Sent::Gone(error) = sent {
                break Pause::Gone(error);
            }
        };
        self.has_sent = done > 0;
        Ok(pause)
    }
}

fn send(backend: &mut dyn Backend, mut chain: Chain<'_>, features: u64) -> Sent {
    // Taken once: the guest may write to it while it is looked at.
    let mut header = [0; header::LEN];
    let whole = chain.readable.read(&mut header) == header::LEN;
    let len = chain.readable.len();
    if !whole || !(SHORTEST..=LONGEST).contains(&len) {
        return Sent::Dropped;
    }
    let Some(passed) = Header::from_bytes(header).for_host(features & feature::OFFLOAD, len) else {
        return Sent::Dropped;
    };
    loop {
        let mut header = passed.to_bytes();
        let mut frame = Pieces::default();
        frame.own(&mut header);
        if !frame.guest(&chain.readable, 0) {
            return Sent::Dropped; // more descriptors than any queue of this device has
        }
        match backend.send(frame) {
            Ok(()) => return Sent::Yes,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Sent::NoRoom,
            Err(error) if backend::is_gone(&error) => return Sent::Gone(error),
            Err(_) => return Sent::Dropped,
        }
    }
}
