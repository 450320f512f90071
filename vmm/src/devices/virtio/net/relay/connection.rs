//! One relayed connection: two ends, and the bytes between them.
//!
//! ```text
//!   SYN of the guest, held ──far end is established──> near end
//!
//!   guest <──> near end ──requests, judged──> far end <──> far side
//!                       <────responses───────
//! ```
//!
//! A reset of one side resets the other one. A side that ends in order ends the other one behind its last
//! byte.

use std::time::{Duration, Instant};

use smoltcp::socket::tcp::State;
use volt_policy::{Mac, reset_for};

use super::counts::RelayCounts;
use super::end::{BufferSizes, Endpoint, LARGEST_RECEIVE_BUFFER, TcpChecksum, TcpEnd, is_whole_segment};
use super::frame::{TcpFrame, frame_of};
use super::requests::{Ending, HostJudge, RequestStream};
use super::{answer, responses};

/// Buffers of the two ends, in bytes. A head has to fit the first and the last one.
const NEAR: BufferSizes = BufferSizes { receive: volt_policy::LONGEST_HEAD, send: 64 << 10 };
const FAR: BufferSizes = BufferSizes { receive: LARGEST_RECEIVE_BUFFER, send: volt_policy::LONGEST_HEAD };
/// Longest time for an end to be established.
pub(super) const OPENING: Duration = Duration::from_secs(30);
/// Longest time without a byte: of HTTP, and of another protocol.
pub(super) const IDLE: Duration = Duration::from_secs(300);
pub(super) const IDLE_OPAQUE: Duration = Duration::from_secs(3600);
/// Longest time without a byte after the far side has ended and the guest has all of its bytes.
pub(super) const HALF_CLOSED: Duration = Duration::from_secs(60);
/// Longest time for the guest to take the last bytes of a connection that the relay ends.
pub(super) const GOODBYE: Duration = Duration::from_secs(10);

/// Both ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EndPair {
    pub guest: Endpoint,
    pub far: Endpoint,
}

/// The end that the guest connects to.
#[derive(Debug)]
enum NearEnd {
    /// The guest waits for an answer to the SYN in this frame.
    Held(Vec<u8>),
    Open(Box<TcpEnd>),
    /// There was none before the connection ended.
    Gone,
}

/// See the module.
#[derive(Debug)]
pub(super) struct RelayedConnection {
    ends: EndPair,
    /// Hardware addresses of the guest and of its router.
    macs: (Mac, Mac),
    mtu: u16,
    near: NearEnd,
    far: TcpEnd,
    requests: RequestStream,
    /// The guest has got a byte of the far side.
    has_response: bool,
    /// When a byte passed or was acknowledged last, or the far side ended.
    moved: Instant,
    /// Bytes in both send buffers.
    queued: usize,
    /// When the connection that the relay ends is reset.
    ending: Option<Instant>,
}

impl RelayedConnection {
    /// Begins a connection with a frame of the guest that has a SYN. Returns `None` if an address or a port
    /// of it is of no host.
    pub fn new(
        bytes: &[u8],
        syn: &TcpFrame<'_>,
        (mtu, far_mtu): (u16, u16),
        seed: u64,
        now: Instant,
    ) -> Option<Self> {
        let ends = EndPair { guest: syn.source, far: syn.target };
        let mut far = TcpEnd::connecting(ends.guest, ends.far, FAR, far_mtu, seed, now)?;
        far.socket_mut().set_timeout(Some(OPENING.into()));
        far.work(now);
        Some(Self {
            ends,
            macs: syn.macs,
            mtu,
            near: NearEnd::Held(bytes.to_vec()),
            far,
            requests: RequestStream::new(),
            has_response: false,
            moved: now,
            queued: 0,
            ending: None,
        })
    }

    pub fn ends(&self) -> EndPair {
        self.ends
    }

    /// Takes a frame of the guest.
    pub fn receive_from_guest(
        &mut self,
        bytes: &[u8],
        frame: &TcpFrame<'_>,
        checksum: TcpChecksum,
        now: Instant,
    ) {
        match &mut self.near {
            NearEnd::Open(near) => {
                near.receive(frame.packet, checksum, now);
            }
            NearEnd::Held(_) if !is_whole_segment(frame.packet, checksum) => {}
            // The guest asks again, or anew.
            NearEnd::Held(syn) if frame.opens() => *syn = bytes.to_vec(),
            NearEnd::Held(_) if frame.flags.rst => self.give_up(),
            NearEnd::Held(_) | NearEnd::Gone => {}
        }
    }

    /// Takes a frame of the far side.
    pub fn receive_from_far(&mut self, frame: &TcpFrame<'_>, checksum: TcpChecksum, now: Instant) {
        self.far.receive(frame.packet, checksum, now);
    }

    /// Moves bytes, and sends what is due. `seed` is for the near end. Returns a reset for the guest if the
    /// far side refuses the connection.
    pub fn work(
        &mut self,
        now: Instant,
        seed: impl FnOnce() -> u64,
        judge: &mut HostJudge<'_>,
        counts: &mut RelayCounts,
    ) -> Option<Vec<u8>> {
        // A timeout may end one side.
        self.send_due(now);
        let mut refusal = None;
        if let NearEnd::Held(syn) = &self.near {
            match self.far.socket().state() {
                State::SynSent | State::SynReceived => {}
                State::Closed => {
                    refusal = reset_for(syn);
                    self.near = NearEnd::Gone;
                }
                _ => self.open_near(seed(), now),
            }
        }
        self.relay(now, judge, counts);
        self.send_due(now);
        refusal
    }

    /// The next frame to the guest.
    pub fn next_to_guest(&mut self) -> Option<Vec<u8>> {
        let NearEnd::Open(near) = &mut self.near else { return None };
        let (guest, router) = self.macs;
        near.next_packet().map(|packet| frame_of(&packet, (router, guest), self.ends.guest.0))
    }

    /// Whether a frame waits for the guest.
    pub fn has_frame_to_guest(&self) -> bool {
        matches!(&self.near, NearEnd::Open(near) if near.has_waiting())
    }

    /// The next frame to the far side.
    pub fn next_to_far(&mut self) -> Option<Vec<u8>> {
        self.far.next_packet().map(|packet| frame_of(&packet, self.macs, self.ends.far.0))
    }

    /// Whether its last request is still allowed.
    pub fn is_allowed(&self, judge: &mut HostJudge<'_>) -> bool {
        self.requests.is_allowed(self.ends.far, judge)
    }

    /// Resets the far side. Returns the frame that tells it.
    pub fn end_far_side(&mut self, now: Instant) -> Option<Vec<u8>> {
        // Bytes of before are of no use, and may have the place of the reset.
        while self.far.next_packet().is_some() {}
        self.far.socket_mut().abort();
        self.far.work(now);
        self.next_to_far()
    }

    /// When [`RelayedConnection::work`] has something to do without a frame. It may be `now`.
    pub fn next_work(&mut self, now: Instant) -> Option<Instant> {
        let deadline = self.deadline();
        let NearEnd::Open(near) = &mut self.near else { return self.far.next_work(now) };
        let due = [near.next_work(now), self.far.next_work(now)];
        due.into_iter().flatten().chain(deadline).min()
    }

    /// Whether the guest may begin another connection of the same ends.
    pub fn is_over(&self) -> bool {
        let is_near_over = match &self.near {
            NearEnd::Open(near) => near.is_over(),
            NearEnd::Held(_) => false,
            NearEnd::Gone => true,
        };
        is_near_over && self.far.is_over()
    }

    /// Whether nothing of the connection is left to send.
    pub fn is_done(&self) -> bool {
        let is_near_done = match &self.near {
            NearEnd::Open(near) => near.is_done(),
            NearEnd::Held(_) => false,
            NearEnd::Gone => true,
        };
        is_near_done && self.far.is_done()
    }

    fn open_near(&mut self, seed: u64, now: Instant) {
        let NearEnd::Held(syn) = std::mem::replace(&mut self.near, NearEnd::Gone) else { return };
        let near = TcpEnd::listening(self.ends.far, NEAR, self.mtu, seed, now);
        let (Some(mut near), Some(frame)) = (near, TcpFrame::parse(&syn)) else {
            return self.give_up();
        };
        self.far.socket_mut().set_timeout(None);
        // Its checksum was verified when it came.
        near.receive(frame.packet, TcpChecksum::Trusted, now);
        self.moved = now;
        self.near = NearEnd::Open(Box::new(near));
    }

    fn send_due(&mut self, now: Instant) {
        if let NearEnd::Open(near) = &mut self.near {
            near.work(now);
        }
        self.far.work(now);
    }

    fn give_up(&mut self) {
        self.near = NearEnd::Gone;
        self.far.socket_mut().abort();
    }

    /// Moves bytes in both directions.
    fn relay(&mut self, now: Instant, judge: &mut HostJudge<'_>, counts: &mut RelayCounts) {
        let NearEnd::Open(near) = &mut self.near else { return };
        if near.is_reset() {
            // A socket that was reset before it was established listens again.
            near.socket_mut().abort();
            self.far.socket_mut().abort();
            return;
        }
        if let Some(deadline) = self.ending {
            wind_down(near, &mut self.far, deadline, now);
            return;
        }
        if self.far.is_reset() {
            near.socket_mut().abort();
            return;
        }
        if matches!(near.socket().state(), State::Listen | State::SynReceived) {
            // smoltcp 0.14 takes the answer to its SYN for one to its FIN if it is closed here. It may not
            // have taken the guest's SYN at all.
            if now >= self.moved + OPENING {
                near.socket_mut().abort();
                self.far.socket_mut().abort();
            }
            return;
        }
        let moved = move_bytes(near, &mut self.far, &mut self.requests, self.ends.far, now, judge);
        match moved {
            Ok((is_request, is_response)) => {
                self.has_response |= is_response;
                let queued = near.socket().send_queue() + self.far.socket().send_queue();
                if is_request || is_response || queued < self.queued {
                    self.moved = now;
                }
                self.queued = queued;
            }
            Err(ending) => return self.end(&ending, now, counts),
        }
        if self.far.has_peer_ended() && !self.far.socket().can_recv() && near.socket().may_send() {
            near.socket_mut().close();
            self.moved = now;
        }
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.end(&Ending::Cut, now, counts);
        }
    }

    /// Ends the connection: the far side at once, and the guest behind an answer if it has got nothing else.
    fn end(&mut self, ending: &Ending, now: Instant, counts: &mut RelayCounts) {
        let answer = match ending {
            Ending::Denied(reason) => {
                counts.denied += 1;
                Some(answer::forbidden(reason))
            }
            Ending::Ambiguous(reason) => {
                counts.ambiguous += 1;
                Some(answer::bad_request(reason))
            }
            Ending::Cut => None,
        };
        // Requests that were allowed leave before the reset, as far as there is room.
        self.far.work(now);
        self.far.socket_mut().abort();
        self.ending = Some(now + GOODBYE);
        let NearEnd::Open(near) = &mut self.near else { return };
        if let Some(answer) = answer.filter(|_| !self.requests.has_passed() && !self.has_response) {
            // An answer fits an empty buffer, and a guest that takes none needs none.
            let _ = near.socket_mut().send_slice(&answer);
            near.socket_mut().close();
        }
        wind_down(near, &mut self.far, now + GOODBYE, now);
    }

    /// When the connection ends unless something happens.
    fn deadline(&self) -> Option<Instant> {
        let NearEnd::Open(near) = &self.near else { return None };
        if self.is_over() {
            return None;
        }
        if self.ending.is_some() {
            return self.ending;
        }
        let patience = match near.socket().state() {
            State::Listen | State::SynReceived => return Some(self.moved + OPENING),
            State::Established | State::CloseWait if self.requests.is_opaque() => IDLE_OPAQUE,
            State::Established | State::CloseWait => IDLE,
            _ if near.socket().send_queue() > 0 => IDLE,
            _ => HALF_CLOSED,
        };
        let idle = self.moved + patience;
        Some(self.requests.head_deadline().map_or(idle, |head| head.min(idle)))
    }
}

/// Moves bytes of requests and of responses. Returns whether there were any of each.
fn move_bytes(
    near: &mut TcpEnd,
    far: &mut TcpEnd,
    requests: &mut RequestStream,
    toward: Endpoint,
    now: Instant,
    judge: &mut HostJudge<'_>,
) -> Result<(bool, bool), Ending> {
    let (near, far) = (near.socket_mut(), far.socket_mut());
    // A response may tell how the requests go on.
    let is_response = responses::pass(far, near, requests)?;
    let is_request = requests.pass(near, far, toward, now, judge)?;
    Ok((is_request, is_response))
}

/// Passes the last bytes that the far side sent, and drops those of the guest.
fn wind_down(near: &mut TcpEnd, far: &mut TcpEnd, deadline: Instant, now: Instant) {
    let (near, far) = (near.socket_mut(), far.socket_mut());
    if near.may_send() {
        let room = near.send_capacity() - near.send_queue();
        responses::copy(far, near, room);
    }
    if !far.can_recv() {
        near.close();
    }
    while matches!(near.recv(|bytes| (bytes.len(), bytes.len())), Ok(1..)) {}
    if now >= deadline && near.is_active() {
        near.abort();
    }
}
