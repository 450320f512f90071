//! The beginning of a connection of TLS, held until its name is known.
//!
//! ```text
//!  guest: segments in order ──> copies ──whole message──> judge ──> the copies are sent
//!         the last segment of a write: a part of the message ──────> the device acknowledges the part
//!         the same again    ──────────────────────────────────────> the copies are sent again
//!  far side: acknowledges all, and its first message is no retry ──> the hold is over
//!            asks for another first message                      ──> a new hold, for the same name
//! ```
//!
//! A segment that the guest sends a second time could have another name in it. Until the far side has
//! acknowledged the judged copies, it gets these alone; it ignores bytes that it has already.
//!
//! A program may write the message in parts. Its kernel sends no second short segment before the first one is
//! acknowledged (Nagle's algorithm, RFC 9293, section 3.7.4), so that the device has to do this in the far
//! side's place. It also acknowledges what comes again: Linux repeats the first segment alone until then. The
//! guest does not repeat a part that was acknowledged. If it repeats a later segment, the copies before that
//! go again, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::client_hello::{ClientHello, HelloStart, LONGEST_HELLO, read_hello};
use crate::frame::{Segment, distance};

/// Most bytes that all holds of a VM keep. Its interfaces share them.
pub const MOST_HELD: usize = 512 << 10;
/// Most frames of one hold: each write of a program may be one.
const MOST_FRAMES: usize = 64;
/// Longest time from the first byte to the end of the message.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest time from the first byte until the far side has acknowledged the message, when room is short.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);
/// Shortest first piece behind which others are sent at once. A far side that keeps no state before the
/// connection is open (SYN cookies) takes the number of its first byte from the first packet that arrives.
/// Linux takes one up to 3 bytes off: if a shorter piece were lost, the message would begin behind it.
pub(crate) const LEAST_FIRST: usize = 64;
/// Why a connection ends whose guest ends it early.
const EARLY_END: &str = "it ends before its first message does";
/// Least time between two times that copies are sent again: Linux waits as long (its least timeout for
/// segments).
const BETWEEN_RESENDS: Duration = Duration::from_millis(200);
/// Bytes of a server's first record that tell a retry: the header of the record and of the message, the
/// version, and what is random otherwise (RFC 8446, section 4.1.3).
const SERVER: usize = 5 + 4 + 2 + RETRY.len();
const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2,
    0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];
/// A record that TLS 1.3 puts between for the sake of old middleboxes (RFC 8446, appendix D.4).
const CHANGE_CIPHER: [u8; 6] = [20, 3, 3, 0, 1, 1];

/// A frame that was copied out of the guest's memory, with the header that the device puts in front of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// `struct virtio_net_hdr_v1` (virtio 1.2, section 5.1.6), for the host.
    pub header: [u8; 12],
    /// The frame.
    pub frame: Arc<[u8]>,
}

impl Copied {
    /// A frame that the device has made. It leaves nothing to the host.
    #[must_use]
    pub fn made(frame: Vec<u8>) -> Self {
        Self { header: [0; 12], frame: frame.into() }
    }
}

/// The bytes that all holds of an interface keep, and the most that they may.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    bytes: Arc<AtomicUsize>,
    most: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { bytes: Arc::default(), most: MOST_HELD }
    }
}

impl Budget {
    /// Bytes that are kept.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The same bytes with another limit, for the next hold.
    pub fn limited(&self, most: usize) -> Self {
        Self { bytes: Arc::clone(&self.bytes), most }
    }

    /// Takes room in place of some that the caller has, if there is as much.
    fn exchange(&self, old: usize, new: usize) -> bool {
        let has_room = self.bytes.fetch_add(new, Ordering::Relaxed) + new <= self.most + old;
        self.give_back(if has_room { old } else { new });
        has_room
    }

    fn give_back(&self, size: usize) {
        self.bytes.fetch_sub(size, Ordering::Relaxed);
    }
}

/// A copied frame, and the numbers of its first byte and of the one behind it.
#[derive(Debug)]
struct Kept {
    copied: Copied,
    from: u32,
    to: u32,
}

/// The consequence of a segment of the guest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing is sent.
    Keep,
    /// The guest is told that its bytes before this number have arrived.
    Acknowledge(u32),
    /// These are sent.
    Send(Vec<Copied>),
    /// These are sent once more.
    SendAgain(Vec<Copied>),
    /// The message is whole: it is judged, and [`Hold::allow`] sends it.
    Judge(ClientHello),
    /// The connection ends.
    Refuse(&'static str),
    /// There is no room. The guest sends it again.
    Full,
}

/// The consequence of a segment of the far side.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FarStep {
    /// It passes.
    Pass,
    /// It passes, and the hold is over.
    Over,
    /// It came out of order. The far side sends it again.
    Drop,
    /// The connection ends.
    Refuse(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The message is not complete.
    Collects,
    /// The message was sent, and the far side has not acknowledged all of it.
    Sent,
    /// The far side has all of it.
    Acknowledged,
}

/// Knowledge of the far side.
#[derive(Debug)]
enum Server {
    /// Nothing.
    Silent,
    /// It has answered the guest's first segment.
    Opened {
        /// Numbers of its first byte and of its next one.
        first: u32,
        next: u32,
        /// Its first bytes.
        bytes: Vec<u8>,
    },
    /// Whether it asks for another message.
    Known,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Hold {
    budget: Budget,
    /// Number of the first byte of the connection, and of that of `bytes`.
    base: u32,
    start: u32,
    bytes: Vec<u8>,
    kept: Vec<Kept>,
    stage: Stage,
    until: Option<Instant>,
    server: Server,
    /// Data followed the message in its last segment.
    has_more: bool,
    is_second: bool,
    /// When the copies were sent again last.
    resent: Option<Instant>,
    /// The first message, once it was judged.
    judged: Option<ClientHello>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Hold {
    /// The hold of a connection whose first byte has this number.
    pub fn new(start: u32, budget: &Budget) -> Self {
        Self {
            budget: budget.clone(),
            base: start,
            start,
            bytes: Vec::new(),
            kept: Vec::new(),
            stage: Stage::Collects,
            until: None,
            server: Server::Silent,
            has_more: false,
            is_second: false,
            resent: None,
            judged: None,
        }
    }

    /// Begins with another number: the guest opens the connection anew. Returns whether it may: the far side
    /// has not answered.
    pub fn restart(&mut self, start: u32) -> bool {
        let may_restart = matches!(self.server, Server::Silent);
        if may_restart && start != self.base {
            *self = Self::new(start, &self.budget);
        }
        may_restart || start == self.base
    }

    /// Number behind the last byte that the far side may have got.
    pub fn sent_up_to(&self) -> u32 {
        if self.stage == Stage::Collects { self.start } else { self.end() }
    }

    /// Notes the far side's answer to the guest's first segment. Returns whether it is one: it acknowledges
    /// the number with which this begins. The stream of a far side that has seen another number would begin
    /// elsewhere in what is held.
    pub fn far_opens(&mut self, segment: &Segment) -> bool {
        let is_answer = segment.flags.ack && segment.acknowledged == self.base;
        if is_answer && matches!(self.server, Server::Silent) {
            let first = segment.sequence.wrapping_add(1);
            self.server = Server::Opened { first, next: first, bytes: Vec::new() };
        }
        is_answer
    }

    /// The message that was judged.
    pub fn into_judged(mut self) -> Option<ClientHello> {
        self.judged.take()
    }

    /// Whether its time is over.
    pub fn is_late(&self, now: Instant) -> bool {
        let more = match self.stage {
            Stage::Collects => Duration::ZERO,
            Stage::Sent => UNACKNOWLEDGED - PATIENCE,
            Stage::Acknowledged => return false,
        };
        self.until.is_some_and(|until| until + more <= now)
    }

    /// Takes a segment of the guest that has a payload, or ends its direction.
    pub fn take(&mut self, copied: &Copied, segment: &Segment, payload: &[u8], now: Instant) -> Step {
        if segment.flags.urg {
            return Step::Refuse("it has urgent data, which a server could leave out");
        }
        if !self.acknowledges_known(segment) {
            return Step::Keep;
        }
        if self.stage == Stage::Collects {
            return self.collect(copied, segment, payload, now);
        }
        let end = self.end();
        let to = segment.sequence.wrapping_add(payload.len() as u32);
        let is_old = distance(to, end) >= 0;
        match self.stage {
            _ if payload.is_empty() => Step::Send(vec![copied.clone()]),
            Stage::Sent if distance(segment.sequence, end) > 0 => self.resend(to, now),
            // The far side has it, and ignores it.
            Stage::Acknowledged if is_old => Step::Send(vec![copied.clone()]),
            // The server may ask for another first message. Until it has not, nothing follows the first one.
            _ if !self.is_second && !matches!(self.server, Server::Known) => Step::Keep,
            _ => Step::Send(vec![copied.clone()]),
        }
    }

    /// Whether an empty segment of the guest passes: one at the end of what the far side may have. A far side
    /// that keeps no state before the connection is open takes the number of its first segment from the
    /// guest, within some bytes (`SYN` cookies).
    pub fn passes_empty(&self, segment: &Segment) -> bool {
        let ends = [self.base, self.sent_up_to(), self.sent_up_to().wrapping_add(1)];
        ends.contains(&segment.sequence) && self.acknowledges_known(segment)
    }

    /// Whether a segment of the guest acknowledges no more than the far side has sent, and no less.
    fn acknowledges_known(&self, segment: &Segment) -> bool {
        match self.server {
            Server::Silent => false,
            Server::Opened { first, next, .. } => {
                let acknowledged = segment.acknowledged;
                segment.flags.ack && distance(first, acknowledged) >= 0 && distance(acknowledged, next) >= 0
            }
            Server::Known => true,
        }
    }

    /// Whether it has copies that the far side may lack.
    pub fn has_copies(&self) -> bool {
        !self.kept.is_empty()
    }

    /// The message that was judged, if one was.
    pub fn judged(&self) -> Option<&ClientHello> {
        self.judged.as_ref()
    }

    /// Sends the copies up to the end of a segment again, at most as often as a guest would. The device may
    /// have acknowledged those before the segment.
    fn resend(&mut self, to: u32, now: Instant) -> Step {
        if self.resent.is_some_and(|resent| now < resent + BETWEEN_RESENDS) {
            return Step::Keep;
        }
        self.resent = Some(now);
        let begins_before = |kept: &&Kept| distance(kept.from, to) > 0;
        Step::SendAgain(
            self.sendable().iter().filter(begins_before).map(|kept| kept.copied.clone()).collect(),
        )
    }

    fn collect(&mut self, copied: &Copied, segment: &Segment, payload: &[u8], now: Instant) -> Step {
        let until = *self.until.get_or_insert(now + PATIENCE);
        if now >= until {
            return Step::Refuse("its first message takes too long");
        }
        let (end, from) = (self.end(), segment.sequence);
        let to = from.wrapping_add(payload.len() as u32);
        let first = match self.kept.iter().position(|kept| kept.from == from) {
            // The guest sends the rest again, in other pieces.
            Some(first) if distance(end, to) > 0 => first,
            _ if from == end => self.kept.len(),
            // The guest does not know that it has arrived.
            _ if distance(from, end) > 0 => return Step::Acknowledge(end),
            _ => return Step::Keep,
        };
        if payload.is_empty() {
            return match segment.flags.fin {
                // Nothing was asked for.
                true if self.bytes.is_empty() && !self.is_second => Step::Send(vec![copied.clone()]),
                true => Step::Refuse(EARLY_END),
                false => Step::Keep,
            };
        }
        if first >= MOST_FRAMES {
            return Step::Refuse("its first message is in too many pieces");
        }
        let replaced: usize = self.kept[first..].iter().map(|kept| self.size(kept)).sum();
        if !self.budget.exchange(replaced, copied.frame.len() + payload.len()) {
            return Step::Full;
        }
        self.kept.truncate(first);
        self.bytes.truncate(self.kept.iter().map(Kept::len).sum());
        self.bytes.extend_from_slice(payload);
        self.kept.push(Kept { copied: copied.clone(), from, to });
        match self.read() {
            Step::Keep if segment.flags.fin => Step::Refuse(EARLY_END),
            Step::Keep if segment.flags.psh => Step::Acknowledge(to),
            step => step,
        }
    }

    fn read(&self) -> Step {
        let before = match self.is_second {
            true if CHANGE_CIPHER.starts_with(&self.bytes) => return Step::Keep,
            true if self.bytes.starts_with(&CHANGE_CIPHER) => CHANGE_CIPHER.len(),
            _ => 0,
        };
        // A frame may be longer than the longest message.
        let known = &self.bytes[before..];
        match read_hello(&known[..known.len().min(LONGEST_HELLO)]) {
            HelloStart::Partial => Step::Keep,
            HelloStart::Refused(why) => Step::Refuse(why),
            HelloStart::Whole(hello, _)
                if self.judged.as_ref().is_some_and(|first| first.name != hello.name) =>
            {
                Step::Refuse("its second message has another name than the first")
            }
            HelloStart::Whole(hello, _) => Step::Judge(hello),
        }
    }

    /// Sends the message, which was judged.
    pub fn allow(&mut self, hello: ClientHello) -> Vec<Copied> {
        if let HelloStart::Whole(_, len) = read_hello(&self.bytes[..self.bytes.len().min(LONGEST_HELLO)]) {
            self.has_more = len < self.bytes.len();
        }
        // The copies have the bytes.
        self.start = self.end();
        self.bytes = Vec::new();
        self.budget.give_back(self.kept.iter().map(Kept::len).sum());
        self.judged = Some(hello);
        self.stage = Stage::Sent;
        self.sendable().iter().map(|kept| kept.copied.clone()).collect()
    }

    /// Takes a segment of the far side, with its payload.
    pub fn far(&mut self, segment: &Segment, payload: &[u8]) -> FarStep {
        let known = distance(self.base, segment.acknowledged);
        if matches!(self.server, Server::Silent) {
            // A connection of before, of which the far side still has its half. The guest resets it.
            return if payload.is_empty() { FarStep::Pass } else { FarStep::Drop };
        }
        if segment.flags.ack
            && (known < 0 || distance(segment.acknowledged, self.sent_up_to().wrapping_add(1)) < 0)
        {
            return FarStep::Refuse("its far side acknowledges what was not sent");
        }
        if segment.flags.ack && self.stage == Stage::Sent {
            self.acknowledge(segment.acknowledged);
        }
        let step = self.listen(segment, payload);
        if let Server::Opened { next, .. } = &mut self.server
            && segment.flags.fin
            && segment.sequence.wrapping_add(payload.len() as u32) == *next
        {
            // The guest acknowledges the end, too.
            *next = next.wrapping_add(1);
        }
        match step {
            Some(step) => step,
            None if self.stage == Stage::Acknowledged
                && (self.is_second || matches!(self.server, Server::Known)) =>
            {
                FarStep::Over
            }
            None => FarStep::Pass,
        }
    }

    /// Forgets the copies that the far side has.
    fn acknowledge(&mut self, acknowledged: u32) {
        let is_left = |kept: &Kept| distance(acknowledged, kept.to) > 0;
        let gone: usize = self.kept.iter().filter(|kept| !is_left(kept)).map(|kept| self.size(kept)).sum();
        self.kept.retain(is_left);
        self.budget.give_back(gone);
        if self.kept.is_empty() {
            self.stage = Stage::Acknowledged;
        }
    }

    /// Reads the first bytes of the far side, in order. Returns a step if the segment does not just pass.
    fn listen(&mut self, segment: &Segment, payload: &[u8]) -> Option<FarStep> {
        let Server::Opened { next, bytes, .. } = &mut self.server else { return None };
        if payload.is_empty() || self.is_second {
            return None;
        }
        if self.stage == Stage::Collects {
            // Nothing is known of what it answers.
            return Some(FarStep::Refuse("its far side speaks first"));
        }
        let Ok(known) = usize::try_from(distance(segment.sequence, *next)) else {
            return Some(FarStep::Drop);
        };
        let fresh = payload.get(known..).unwrap_or_default();
        *next = next.wrapping_add(fresh.len() as u32);
        bytes.extend_from_slice(&fresh[..fresh.len().min(SERVER - bytes.len())]);
        // A retry is a handshake's first message, and a server's hello.
        let may_retry =
            [(0, 22), (5, 2)].iter().all(|(at, kind)| bytes.get(*at).is_none_or(|byte| byte == kind));
        if may_retry && bytes.len() < SERVER {
            return None;
        }
        let retries = may_retry && bytes[SERVER - RETRY.len()..] == RETRY;
        self.server = Server::Known;
        if !retries {
            return None;
        }
        if self.has_more || self.stage != Stage::Acknowledged {
            return Some(FarStep::Refuse("its far side asks for another first message too early"));
        }
        let start = self.end();
        self.give_back();
        (self.start, self.stage, self.until, self.is_second) = (start, Stage::Collects, None, true);
        None
    }

    /// Bytes beside the copies.
    #[cfg(test)]
    pub fn kept_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Number behind the last byte of `bytes`.
    fn end(&self) -> u32 {
        self.start.wrapping_add(self.bytes.len() as u32)
    }

    /// The copies that may be sent: a short one that begins the stream goes alone until the far side has it.
    fn sendable(&self) -> &[Kept] {
        let is_short = |first: &Kept| first.from == self.base && first.len() < LEAST_FIRST;
        match self.kept.first() {
            Some(first) if is_short(first) => &self.kept[..1],
            _ => &self.kept,
        }
    }

    /// Forgets all copies.
    fn give_back(&mut self) {
        let gone: usize = self.kept.iter().map(|kept| self.size(kept)).sum();
        self.budget.give_back(gone);
        self.kept.clear();
        self.bytes.clear();
    }

    /// Bytes that a copy takes: those of the frame, and of the payload beside it until the message is judged.
    fn size(&self, kept: &Kept) -> usize {
        kept.copied.frame.len() + if self.stage == Stage::Collects { kept.len() } else { 0 }
    }
}

impl Kept {
    /// Bytes of its payload.
    fn len(&self) -> usize {
        self.to.wrapping_sub(self.from) as usize
    }
}
