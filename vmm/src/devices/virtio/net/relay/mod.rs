//! The relay of plain HTTP: the device ends a guest's connections itself, and judges the host of each request
//! before the far side gets it.
//!
//! ```text
//!  guest ──frames──> near end (the far side's address) ──requests, judged──> far end (the guest's address)
//!        <─────────                                    <────responses──────        │ frames
//!                                                                               backend
//! ```
//!
//! The owner gives it the frames of both sides, calls [`Relays::work`] when it is time, and then takes all
//! frames out.
//!
//! All that the guest and the far side send may be hostile: connections, bytes and time of each are bounded.

use std::collections::VecDeque;
use std::time::Instant;

use volt_policy::reset_for;

use super::SHORTEST_DELAY;
use super::metadata::seed;

mod answer;
mod chunks;
mod connection;
mod counts;
pub(super) mod end;
pub(super) mod frame;
mod packets;
mod requests;
mod responses;
#[cfg(test)]
mod tests;

use connection::{EndPair, RelayedConnection};
pub(super) use counts::RelayCounts;
use end::{Endpoint, TcpChecksum, is_whole_segment};
use frame::TcpFrame;
use requests::HostJudge;

/// Most connections of an interface.
const MOST_CONNECTIONS: usize = 64;
/// Most resets that wait for the guest.
const MOST_RESETS: usize = 64;

/// All relayed connections of one interface.
#[derive(Debug)]
pub(super) struct Relays {
    /// Bytes of the longest packets to the guest and to the far side.
    mtu: u16,
    far_mtu: u16,
    connections: Vec<RelayedConnection>,
    /// Resets for connections that there is no end for.
    resets: VecDeque<Vec<u8>>,
    /// The connections whose frames come next, so that each gets its turn.
    next_to_guest: usize,
    next_to_far: usize,
    counts: RelayCounts,
    /// Ends of connections that are over, until their owner takes them.
    ended: Vec<(Endpoint, Endpoint)>,
}

impl Relays {
    /// Makes the relay of an interface whose packets have at most `mtu` bytes, and `far_mtu` those to the far
    /// side.
    pub fn new(mtu: u16, far_mtu: u16) -> Self {
        let (connections, resets) = (Vec::new(), VecDeque::new());
        Self {
            mtu,
            far_mtu,
            connections,
            resets,
            next_to_guest: 0,
            next_to_far: 0,
            counts: RelayCounts::default(),
            ended: Vec::new(),
        }
    }

    /// Whether there is a connection between these ends.
    #[cfg(test)]
    pub fn is_known(&self, guest: Endpoint, far: Endpoint) -> bool {
        self.position(guest, far).is_some()
    }

    /// Begins a connection with a frame of the guest that has a SYN, or takes one that the guest sends again.
    /// The guest gets a reset if there is no room.
    fn open(&mut self, frame: &[u8], syn: &TcpFrame<'_>, checksum: TcpChecksum, now: Instant) {
        if !is_whole_segment(syn.packet, checksum) {
            return;
        }
        match self.position(syn.source, syn.target) {
            Some(at) if self.connections[at].is_over() => {
                self.connections.swap_remove(at);
            }
            Some(at) => {
                self.connections[at].receive_from_guest(frame, syn, TcpChecksum::Trusted, now);
                return;
            }
            None => {}
        }
        if self.connections.len() >= MOST_CONNECTIONS
            && let Some(over) = self.connections.iter().position(RelayedConnection::is_over)
        {
            // Only late packets of its sides are left.
            self.connections.swap_remove(over);
        }
        let connection = match self.connections.len() {
            0..MOST_CONNECTIONS => RelayedConnection::new(frame, syn, (self.mtu, self.far_mtu), seed(), now),
            _ => {
                self.counts.refused += 1;
                None
            }
        };
        match connection {
            Some(connection) => {
                self.counts.opened += 1;
                self.connections.push(connection);
            }
            None => self.reset_guest(reset_for(frame)),
        }
    }

    /// Takes a frame of the guest, which begins a connection if it has a SYN. Returns whether it is of a
    /// connection of the relay.
    pub fn receive_from_guest(
        &mut self,
        frame: &[u8],
        checksum: TcpChecksum,
        now: Instant,
        judge: &mut HostJudge<'_>,
    ) -> bool {
        let Some(segment) = TcpFrame::parse(frame) else { return false };
        if segment.opens() {
            self.open(frame, &segment, checksum, now);
            return true;
        }
        let Some(at) = self.position(segment.source, segment.target) else { return false };
        self.connections[at].receive_from_guest(frame, &segment, checksum, now);
        self.work_on(at, now, judge);
        true
    }

    /// Takes a frame of the far side. Returns whether it is of a connection of the relay.
    pub fn receive_from_far(
        &mut self,
        frame: &[u8],
        checksum: TcpChecksum,
        now: Instant,
        judge: &mut HostJudge<'_>,
    ) -> bool {
        let Some(segment) = TcpFrame::parse(frame) else { return false };
        let Some(at) = self.position(segment.target, segment.source) else { return false };
        self.connections[at].receive_from_far(&segment, checksum, now);
        self.work_on(at, now, judge);
        true
    }

    /// Moves bytes of all connections, and sends what is due.
    pub fn work(&mut self, now: Instant, judge: &mut HostJudge<'_>) {
        // From the last one on, because one that is done leaves its place to the last.
        for at in (0..self.connections.len()).rev() {
            self.work_on(at, now, judge);
        }
    }

    /// Takes the next frame to the guest.
    pub fn next_to_guest(&mut self) -> Option<Vec<u8>> {
        let reset = self.resets.pop_front();
        let Self { connections, next_to_guest, ended, .. } = self;
        reset.or_else(|| next_frame(connections, next_to_guest, ended, RelayedConnection::next_to_guest))
    }

    /// Takes the next frame to the far side.
    pub fn next_to_far(&mut self) -> Option<Vec<u8>> {
        let Self { connections, next_to_far, ended, .. } = self;
        next_frame(connections, next_to_far, ended, RelayedConnection::next_to_far)
    }

    /// Whether a frame waits for the guest.
    pub fn has_frame_to_guest(&self) -> bool {
        !self.resets.is_empty() || self.connections.iter().any(RelayedConnection::has_frame_to_guest)
    }

    /// The time of the next [`Relays::work`]. It is later than `now`: a guest or a backend that takes no
    /// frames would keep the device busy.
    pub fn next_work(&mut self, now: Instant) -> Option<Instant> {
        let next = self.connections.iter_mut().filter_map(|connection| connection.next_work(now)).min();
        next.map(|next| next.max(now + SHORTEST_DELAY))
    }

    /// Takes the counts since the last call.
    pub fn take_counts(&mut self) -> RelayCounts {
        std::mem::take(&mut self.counts)
    }

    /// Ends a connection. Returns the frame that tells the far side.
    pub fn end(&mut self, guest: Endpoint, far: Endpoint, now: Instant) -> Option<Vec<u8>> {
        let at = self.position(guest, far)?;
        self.remove(at).end_far_side(now)
    }

    /// Ends the connections whose last request is no longer allowed. Returns the frames that tell their far
    /// sides.
    pub fn end_denied(&mut self, now: Instant, judge: &mut HostJudge<'_>) -> Vec<Vec<u8>> {
        let mut resets = Vec::new();
        for at in (0..self.connections.len()).rev() {
            if !self.connections[at].is_allowed(judge) {
                resets.extend(self.remove(at).end_far_side(now));
            }
        }
        resets
    }

    /// Takes the ends of the connections that are over, the guest's and the far one of each.
    pub fn take_ended(&mut self) -> Vec<(Endpoint, Endpoint)> {
        std::mem::take(&mut self.ended)
    }

    fn remove(&mut self, at: usize) -> RelayedConnection {
        let connection = self.connections.swap_remove(at);
        let EndPair { guest, far } = connection.ends();
        self.ended.push((guest, far));
        connection
    }

    /// Ends the connections of all far sides. Returns the frames that tell them.
    pub fn end_far_sides(&mut self, now: Instant) -> Vec<Vec<u8>> {
        self.connections.iter_mut().filter_map(|connection| connection.end_far_side(now)).collect()
    }

    /// Forgets all connections. No side is told.
    pub fn reset(&mut self) {
        *self = Self { counts: self.counts, ..Self::new(self.mtu, self.far_mtu) };
    }

    fn position(&self, guest: Endpoint, far: Endpoint) -> Option<usize> {
        let ends = EndPair { guest, far };
        self.connections.iter().position(|connection| connection.ends() == ends)
    }

    fn work_on(&mut self, at: usize, now: Instant, judge: &mut HostJudge<'_>) {
        let refusal = self.connections[at].work(now, seed, judge, &mut self.counts);
        self.reset_guest(refusal);
        if self.connections[at].is_done() {
            self.remove(at);
        }
    }

    /// Queues a reset. A guest without one asks again.
    fn reset_guest(&mut self, reset: Option<Vec<u8>>) {
        self.resets.extend(reset.filter(|_| self.resets.len() < MOST_RESETS));
    }
}

/// Takes the next frame of any connection, from the one at `next` on, which moves behind it.
fn next_frame(
    connections: &mut Vec<RelayedConnection>,
    next: &mut usize,
    ended: &mut Vec<(Endpoint, Endpoint)>,
    take: impl Fn(&mut RelayedConnection) -> Option<Vec<u8>>,
) -> Option<Vec<u8>> {
    let len = connections.len();
    for at in (0..len).map(|step| (*next + step) % len) {
        if let Some(frame) = take(&mut connections[at]) {
            *next = at + 1;
            if connections[at].is_done() {
                let EndPair { guest, far } = connections.swap_remove(at).ends();
                ended.push((guest, far));
            }
            return Some(frame);
        }
    }
    None
}
