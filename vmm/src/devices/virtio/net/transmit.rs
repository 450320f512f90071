//! Frames from the guest to the backend, or to a service of the device. A chain is given back when the
//! backend has its frame, or when the frame is dropped. A frame for which the backend has no room stays in
//! the queue. Rate limits leave frames to a service out.

use std::io::{self, ErrorKind};
use std::time::Instant;

use volt_policy::{Copied, HEAD};

use super::backend;
use super::backend::Backend;
use super::backoff::Backoff;
use super::guard::{Guard, Passage};
use super::header;
use super::header::Header;
use super::link_service::LinkService;
use super::metadata::MetadataService;
use super::pieces::Pieces;
use super::services::Services;
use super::{MAX_FRAMES_PER_TURN, MIN_FRAME, TurnEnd, feature};
use crate::config::devices::RateLimit;
use crate::devices::virtio::chain::Chain;
use crate::devices::virtio::limiter::RateLimiter;
use crate::devices::virtio::{ChainOutcome, DeviceFailed, DeviceIo, NextTurn};

/// Number of the queue.
const QUEUE: usize = 1;
/// Bytes of the longest frame: 64 KiB and an Ethernet header.
const MAX_FRAME: usize = 0x1_0000 + 14;

/// The sending direction.
#[derive(Debug)]
pub(super) struct Transmitter {
    pub limiter: RateLimiter,
    /// The backend had no room.
    pub blocked: bool,
    /// The last turn gave chains back.
    pub has_sent: bool,
    /// Frames that no backend would have taken, or not in this state.
    pub dropped: u64,
    /// The backend fails: the next attempt is at a fixed time, whatever the backend is ready for.
    pub failing: bool,
    /// The last error of sending a frame, until it is logged.
    pub error: Option<io::Error>,
    backoff: Backoff,
}

/// Outcome of sending a frame.
enum SendOutcome {
    Sent,
    Dropped,
    /// The host refuses this frame.
    Refused(io::Error),
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

    /// Sends frames for one turn. Drops them unless the backend is `connected`.
    pub fn turn(
        &mut self,
        backend: &mut dyn Backend,
        services: &mut Services,
        connected: bool,
        io: &mut DeviceIo<'_>,
    ) -> Result<TurnEnd, DeviceFailed> {
        (self.blocked, self.has_sent, self.failing) = (false, false, false);
        match if connected { backend.flush() } else { Ok(()) } {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.blocked = true;
                io.counters.waits(QUEUE, true);
                return Ok(TurnEnd::Ready);
            }
            Err(error) if backend::is_gone(&error) => return Ok(TurnEnd::Gone(error)),
            Err(error) => {
                (self.failing, self.error) = (true, Some(error));
                return Ok(self.backoff.failed(Instant::now()).map_or(TurnEnd::Again, TurnEnd::At));
            }
            Ok(()) => self.backoff.succeeded(),
        }
        if let Some(turn_end) = self.send_copies(backend, services, connected, io) {
            return Ok(turn_end);
        }
        let (features, mut gone) = (io.features, None);
        let next = io.each_chain(QUEUE, MAX_FRAMES_PER_TURN, |mut chain| {
            if let Some(service) = &mut services.metadata
                && connected
                && serve(service, &mut chain, features)
            {
                self.has_sent = true;
                return Ok(ChainOutcome::Done(0));
            }
            if let Some(service) = &mut services.link
                && connected
                && serve_link(service, &mut chain, features)
            {
                self.has_sent = true;
                return Ok(ChainOutcome::Done(0));
            }
            let bytes = chain.readable.len().saturating_sub(header::LEN) as u64;
            if let Err(at) = self.limiter.check(Instant::now(), bytes) {
                return Ok(ChainOutcome::Kept(NextTurn::At(at)));
            }
            let guard = services.guard.as_deref_mut();
            let is_judged = connected && guard.is_some();
            let sent = if connected { send(backend, chain, guard, features) } else { SendOutcome::Dropped };
            let outcome = match sent {
                SendOutcome::Sent => {
                    self.limiter.spend(bytes);
                    ChainOutcome::Done(0)
                }
                SendOutcome::Dropped | SendOutcome::Refused(_) => {
                    if let SendOutcome::Refused(error) = sent {
                        self.error = Some(error);
                    }
                    if is_judged {
                        // The verdict on a frame costs the host, too.
                        self.limiter.spend(bytes);
                    }
                    self.dropped += 1;
                    ChainOutcome::Failed
                }
                SendOutcome::Gone(error) => {
                    self.dropped += 1;
                    gone = Some(error);
                    ChainOutcome::FailedLast(NextTurn::Again)
                }
                SendOutcome::NoRoom => {
                    self.blocked = true;
                    return Ok(ChainOutcome::Kept(NextTurn::Wait));
                }
            };
            self.has_sent = true;
            Ok(outcome)
        })?;
        if gone.is_none()
            && let Some(turn_end) = self.send_copies(backend, services, connected, io)
        {
            return Ok(turn_end);
        }
        io.counters.limited(QUEUE, self.limiter.waits());
        io.counters.waits(QUEUE, self.blocked);
        Ok(gone.map_or_else(|| next.into(), TurnEnd::Gone))
    }

    /// Sends the frames that the device has copied or made. Returns the end of the turn if the backend takes
    /// no more.
    pub fn send_copies(
        &mut self,
        backend: &mut dyn Backend,
        services: &mut Services,
        connected: bool,
        io: &DeviceIo<'_>,
    ) -> Option<TurnEnd> {
        // Others were counted as frames of the guest.
        match services.guard.as_mut().map_or(0, |guard| guard.take_repeated()) {
            0 => {}
            repeated => self.limiter.spend(repeated),
        }
        while let Some(Copied { header, frame }) = services.next_unsent() {
            let (mut header, mut bytes) = (*header, frame.to_vec());
            let mut pieces = Pieces::default();
            pieces.push_own(&mut header);
            pieces.push_own(&mut bytes);
            match if connected { backend.send(pieces) } else { Ok(()) } {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.blocked = true;
                    io.counters.waits(QUEUE, true);
                    return Some(TurnEnd::Ready);
                }
                Err(error) if backend::is_gone(&error) => return Some(TurnEnd::Gone(error)),
                Err(_) => self.dropped += 1,
                Ok(()) => {}
            }
            services.sent();
        }
        None
    }
}

/// Gives the metadata service a frame that is for it. Returns whether it is.
fn serve(service: &mut MetadataService, chain: &mut Chain<'_>, features: u64) -> bool {
    let mut start = [0; header::LEN + MetadataService::START];
    let len = chain.readable.peek(&mut start);
    if !start[..len].get(header::LEN..).is_some_and(|start| service.wants(start)) {
        return false;
    }
    if passed_header(chain, features).is_some() {
        let mut frame = vec![0; chain.readable.len()];
        chain.readable.read(&mut frame);
        service.receive(frame, Instant::now());
    }
    true
}

/// Gives the service of the link a frame that is for it. Returns whether it is.
fn serve_link(service: &mut LinkService, chain: &mut Chain<'_>, features: u64) -> bool {
    let mut start = [0; header::LEN + HEAD];
    let start_len = chain.readable.peek(&mut start);
    let len = chain.readable.len().saturating_sub(header::LEN);
    if !start[..start_len].get(header::LEN..).is_some_and(|head| service.wants(head, len)) {
        return false;
    }
    if let Some(passed) = passed_header(chain, features) {
        let mut frame = vec![0; chain.readable.len()];
        chain.readable.read(&mut frame);
        service.receive(&frame, passed.offload().checksum.is_some(), Instant::now());
    }
    true
}

/// Takes the header off a frame. Returns the one for the other side, or `None` if the frame is dropped.
fn passed_header(chain: &mut Chain<'_>, features: u64) -> Option<Header> {
    // Read once: the guest may write to the header while it is checked.
    let mut header = [0; header::LEN];
    let whole = chain.readable.read(&mut header) == header::LEN;
    let len = chain.readable.len();
    if !whole || !(MIN_FRAME..=MAX_FRAME).contains(&len) {
        return None;
    }
    Header::from_bytes(header).for_host(features & feature::OFFLOAD, len)
}

fn send(
    backend: &mut dyn Backend,
    mut chain: Chain<'_>,
    guard: Option<&mut Guard>,
    features: u64,
) -> SendOutcome {
    let Some(passed) = passed_header(&mut chain, features) else { return SendOutcome::Dropped };
    let (mut head, mut judged) = ([0; HEAD], 0);
    if let Some(guard) = guard {
        let len = chain.readable.len();
        judged = chain.readable.read(&mut head);
        match guard.outgoing(&head[..judged], len, passed.offload()) {
            Passage::Passes => {}
            Passage::Answered => return SendOutcome::Sent,
            Passage::Drops => return SendOutcome::Dropped,
            Passage::Takes(taken) => {
                let mut frame = vec![0; len];
                frame[..judged].copy_from_slice(&head[..judged]);
                chain.readable.read(&mut frame[judged..]);
                let copied = Copied { header: passed.to_bytes(), frame: frame.into() };
                guard.take(taken, &copied, passed.offload());
                return SendOutcome::Sent;
            }
        }
    }
    loop {
        let mut header = passed.to_bytes();
        let mut frame = Pieces::default();
        frame.push_own(&mut header);
        if judged > 0 {
            frame.push_own(&mut head[..judged]);
        }
        if !frame.push_guest(&chain.readable, 0) {
            return SendOutcome::Dropped; // more descriptors than any queue of the device has
        }
        match backend.send(frame) {
            Ok(()) => return SendOutcome::Sent,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return SendOutcome::NoRoom,
            Err(error) if backend::is_gone(&error) => return SendOutcome::Gone(error),
            Err(error) => return SendOutcome::Refused(error),
        }
    }
}
