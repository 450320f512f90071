//! The metadata service of a network device: ARP and TCP for its address never reach the backend.
//!
//! ```text
//!   queue 1 ──for the address──> Stack (TCP) ──> Connection (HTTP) ──> answer: MetadataStore
//!      │                           └── frames wait for buffers of the guest ──> queue 0
//!      └──────────any other──────> backend
//! ```
//!
//! All that the guest sends may be hostile: connections, bytes and time of each are bounded. Connections end
//! with a restore, and the guest is told when it uses one.

use std::time::Instant;

use rustix::rand::{GetRandomFlags, getrandom};

use super::{DEFAULT_MTU, NextTurn, SHORTEST_DELAY};
use crate::config::metadata::MetadataConfig;
use crate::counters::metadata::MetadataMetrics;

mod answer;
mod connection;
mod frame;
mod link;
mod request;
mod response;
mod stack;
#[cfg(test)]
mod tests;

use request::Request;
use response::{Response, Status};
use stack::Stack;

/// The service of one interface.
#[derive(Debug)]
pub(crate) struct MetadataService {
    config: MetadataConfig,
    mtu: u16,
    /// Nothing before the first frame: a restore does not pay for the stack.
    stack: Option<Box<Stack>>,
    next_work: Option<Instant>,
    /// Work that is not counted yet.
    work: MetadataMetrics,
}

impl MetadataService {
    /// Bytes of the start of a frame that tell whether it is for the service.
    pub const START: usize = frame::START;

    /// Makes the service of an interface with this MTU, if it has one.
    pub fn new(config: &MetadataConfig, mtu: Option<u16>) -> Self {
        let (mtu, work) = (mtu.unwrap_or(DEFAULT_MTU), MetadataMetrics::default());
        Self { config: config.clone(), mtu, stack: None, next_work: None, work }
    }

    /// Whether a frame that starts with these bytes is for the service.
    pub fn wants(&self, start: &[u8]) -> bool {
        frame::is_for_service(start, self.config.address)
    }

    /// Takes a frame of the guest.
    pub fn receive(&mut self, frame: Vec<u8>, now: Instant) {
        let Self { config, stack, work, .. } = self;
        let stack = stack.get_or_insert_with(|| Box::new(Stack::new(config.address, self.mtu, seed(), now)));
        work.frames += 1;
        let is_used = stack.receive(frame, now, |request| answer(request, config, now, work));
        work.dropped_frames += u64::from(!is_used);
        self.next_work = None;
    }

    /// Works if it is time. Returns whether frames wait for the guest.
    pub fn work(&mut self, now: Instant) -> bool {
        let Some(stack) = &mut self.stack else { return false };
        if self.next_work.is_some_and(|next| next <= now) {
            let (config, work) = (&self.config, &mut self.work);
            stack.work(now, |request| answer(request, config, now, work));
        }
        stack.has_waiting()
    }

    /// Takes the next frame to the guest.
    pub fn next_frame(&mut self) -> Option<Vec<u8>> {
        let frame = self.stack.as_mut()?.next_frame()?;
        self.work.sent_frames += 1;
        self.work.sent_bytes += frame.len() as u64;
        Some(frame)
    }

    /// Takes the work since the last call.
    pub fn take_work(&mut self) -> MetadataMetrics {
        let (made, ended) = self.stack.as_mut().map_or((0, 0), |stack| stack.take_connections());
        self.work.connections += made;
        self.work.connections_ended += ended;
        std::mem::take(&mut self.work)
    }

    /// The time of the next [`MetadataService::work`].
    pub fn next_turn(&mut self, now: Instant) -> NextTurn {
        let next = self.stack.as_mut().and_then(|stack| stack.next_work(now));
        // Never at once: a guest that takes no frames would keep its device busy. Work that waits already is
        // not put off by another turn.
        let waiting = self.next_work.filter(|waiting| *waiting > now);
        let next = next.map(|next| next.max(now + SHORTEST_DELAY));
        self.next_work = next.map(|next| waiting.map_or(next, |waiting| waiting.min(next)));
        self.next_work.map_or(NextTurn::Wait, NextTurn::At)
    }

    /// Ends all connections, of which the guest knows nothing any more.
    pub fn reset(&mut self) {
        let ends = self.stack.as_ref().map_or(0, |stack| stack.open_connections());
        let last = self.take_work();
        self.work = MetadataMetrics { connections_ended: last.connections_ended + ends, ..last };
        (self.stack, self.next_work) = (None, None);
    }
}

/// Answers a request, and counts a refusal for its token.
fn answer(
    request: &Request<'_>,
    config: &MetadataConfig,
    now: Instant,
    work: &mut MetadataMetrics,
) -> Response {
    let response = answer::answer(request, config, now);
    if response.status == Status::Unauthorized {
        match request.token {
            None => work.requests_without_token += 1,
            Some(_) => work.requests_with_bad_token += 1,
        }
    }
    response
}

/// A seed that no guest can guess. Sequence numbers of one that the host lacks are no worse than the guest's
/// own.
pub(super) fn seed() -> u64 {
    let mut seed = [0; 8];
    let _ = getrandom(&mut seed, GetRandomFlags::empty());
    u64::from_le_bytes(seed)
}
