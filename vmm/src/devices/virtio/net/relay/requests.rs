//! The requests of one connection: a request passes to the far side only after its head is judged.
//!
//! ```text
//!   Head ──whole and allowed──> its body ──> Head ...
//!     └──first one asks for an upgrade──> Head, held until the far side answers ──101──> Opaque
//! ```
//!
//! A head waits in the receive buffer of the near end until it is whole. The bytes that pass are a copy, the
//! one that was judged.

use std::time::{Duration, Instant};

use smoltcp::socket::tcp::Socket;
use volt_policy::{BodyLength, HeadStart, LONGEST_HEAD, RequestHead, read_head};

use super::chunks::ChunkPosition;
use super::end::{Endpoint, has_peer_ended};

/// Longest time from the first byte of a head to its last.
pub(super) const HEAD_PATIENCE: Duration = Duration::from_secs(10);

/// Judges a request for the far side with this address and port. The error is the reason of a denial.
pub(crate) type HostJudge<'a> = dyn FnMut(&RequestHead, Endpoint) -> Result<(), String> + 'a;

/// Why a connection ends before both sides have ended it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The request's host is denied.
    Denied(String),
    /// Programs could read the request in different ways.
    Ambiguous(&'static str),
    /// A side stops in the middle, takes too long, or does not keep to the protocol.
    Cut,
}

/// A position in the stream of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Head,
    /// In a body with so many bytes left.
    Bytes(u64),
    Chunks(ChunkPosition),
    /// In another protocol.
    Opaque,
    /// Behind the last byte.
    Over,
}

/// The request for another protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Upgrade {
    /// There is none, or the far side goes on with HTTP.
    No,
    /// The far side has not answered.
    Asked,
    Granted,
}

/// See the module.
#[derive(Debug)]
pub(super) struct RequestStream {
    position: Position,
    upgrade: Upgrade,
    has_passed: bool,
    /// The last request that passed.
    last: Option<RequestHead>,
    /// When the first byte of a head came that is not whole yet.
    head_began: Option<Instant>,
    /// Bytes of this head that were read.
    read: usize,
}

impl RequestStream {
    pub fn new() -> Self {
        let (position, upgrade) = (Position::Head, Upgrade::No);
        Self { position, upgrade, has_passed: false, last: None, head_began: None, read: 0 }
    }

    /// Whether the far side has got a request.
    pub fn has_passed(&self) -> bool {
        self.has_passed
    }

    /// Whether the last request that passed is still allowed.
    pub fn is_allowed(&self, toward: Endpoint, judge: &mut HostJudge<'_>) -> bool {
        self.last.as_ref().is_none_or(|head| judge(head, toward).is_ok())
    }

    /// Whether the next response of the far side answers an upgrade.
    pub fn awaits_upgrade(&self) -> bool {
        self.upgrade == Upgrade::Asked
    }

    /// Whether bytes pass that are no requests.
    pub fn is_opaque(&self) -> bool {
        self.upgrade == Upgrade::Granted
    }

    /// Takes the far side's answer to an upgrade.
    pub fn answer_upgrade(&mut self, is_granted: bool) {
        self.upgrade = if is_granted { Upgrade::Granted } else { Upgrade::No };
    }

    /// When the connection ends unless the head is whole.
    pub fn head_deadline(&self) -> Option<Instant> {
        self.head_began.map(|began| began + HEAD_PATIENCE)
    }

    /// Passes bytes of the guest from `near` to `far` as far as they may pass and there is room. Returns
    /// whether any did. Closes `far` behind the last byte.
    ///
    /// # Errors
    /// The connection has to end. No byte of the head in question has passed.
    pub fn pass(
        &mut self,
        near: &mut Socket<'_>,
        far: &mut Socket<'_>,
        toward: Endpoint,
        now: Instant,
        judge: &mut HostJudge<'_>,
    ) -> Result<bool, Ending> {
        let before = near.recv_queue();
        while match self.position {
            Position::Head => self.pass_head(near, far, toward, now, judge)?,
            Position::Bytes(_) | Position::Chunks(_) | Position::Opaque => self.pass_body(near, far)?,
            Position::Over => false,
        } {}
        Ok(near.recv_queue() < before)
    }

    /// Passes the next head. Returns whether the stream goes on at another position.
    fn pass_head(
        &mut self,
        near: &mut Socket<'_>,
        far: &mut Socket<'_>,
        toward: Endpoint,
        now: Instant,
        judge: &mut HostJudge<'_>,
    ) -> Result<bool, Ending> {
        if self.upgrade == Upgrade::Granted {
            self.position = Position::Opaque;
            return Ok(true);
        }
        let (arrived, has_ended) = (near.recv_queue(), has_peer_ended(near));
        if arrived == 0 && has_ended {
            return Ok(self.end(far));
        }
        if self.upgrade == Upgrade::Asked || arrived == self.read && !has_ended {
            return Ok(false);
        }
        let mut bytes = [0; LONGEST_HEAD];
        let arrived = near.peek_slice(&mut bytes).unwrap_or(0);
        let (head, len) = match read_head(&bytes[..arrived]) {
            HeadStart::Partial if has_ended => return Err(Ending::Cut),
            HeadStart::Partial => {
                self.head_began.get_or_insert(now);
                self.read = arrived;
                return Ok(false);
            }
            HeadStart::Refused(why) => return Err(Ending::Ambiguous(why)),
            HeadStart::Whole(head, len) => (head, len),
        };
        self.head_began = None;
        if room(far)? < len {
            return Ok(false);
        }
        if head.upgrades && self.has_passed {
            return Err(Ending::Ambiguous("only the first request may ask for another protocol"));
        }
        judge(&head, toward).map_err(Ending::Denied)?;
        // Cannot fail: there is room, and the bytes were just seen.
        let mut from = 0;
        for line in head.left_out.iter().cloned().chain(std::iter::once(len..len)) {
            let _ = far.send_slice(&bytes[from..line.start]);
            from = line.end;
        }
        let _ = near.recv_slice(&mut bytes[..len]);
        (self.has_passed, self.read) = (true, 0);
        if head.upgrades {
            self.upgrade = Upgrade::Asked;
        }
        self.position = match head.body {
            BodyLength::Bytes(0) => Position::Head,
            BodyLength::Bytes(len) => Position::Bytes(len),
            BodyLength::Chunked => Position::Chunks(ChunkPosition::START),
        };
        self.last = Some(head);
        Ok(true)
    }

    /// Passes bytes of a body or of another protocol. Returns whether the stream goes on.
    fn pass_body(&mut self, near: &mut Socket<'_>, far: &mut Socket<'_>) -> Result<bool, Ending> {
        if near.recv_queue() == 0 {
            return match (has_peer_ended(near), self.position) {
                (false, _) => Ok(false),
                (true, Position::Opaque) => Ok(self.end(far)),
                (true, _) => Err(Ending::Cut),
            };
        }
        let room = room(far)?;
        let passed = near.recv(|bytes| {
            let bytes = &bytes[..bytes.len().min(room)];
            match self.advance(bytes) {
                Ok(len) => {
                    let _ = far.send_slice(&bytes[..len]); // never fails: there is room
                    (len, Ok(len))
                }
                Err(why) => (0, Err(Ending::Ambiguous(why))),
            }
        });
        passed.unwrap_or(Err(Ending::Cut)).map(|len| len > 0)
    }

    /// Moves over the next bytes of a body. Returns how many of them are of it.
    fn advance(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        match &mut self.position {
            Position::Bytes(left) => {
                let len = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= len as u64;
                if *left == 0 {
                    self.position = Position::Head;
                }
                Ok(len)
            }
            Position::Chunks(position) => {
                let len = position.advance(bytes)?;
                if *position == ChunkPosition::Over {
                    self.position = Position::Head;
                }
                Ok(len)
            }
            Position::Opaque => Ok(bytes.len()),
            Position::Head | Position::Over => Ok(0),
        }
    }

    /// Tells the far side that no byte follows.
    fn end(&mut self, far: &mut Socket<'_>) -> bool {
        far.close();
        self.position = Position::Over;
        false
    }
}

/// Bytes that a send buffer has room for.
pub(super) fn room(socket: &Socket<'_>) -> Result<usize, Ending> {
    if !socket.may_send() {
        return Err(Ending::Cut);
    }
    Ok(socket.send_capacity() - socket.send_queue())
}
