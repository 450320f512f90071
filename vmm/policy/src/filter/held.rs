//! Frames that are taken out of the guest's memory whole: the beginnings of connections that are judged by a
//! name.

use std::time::Instant;

use super::classify::{ends, segment};
use super::{Cause, Filter, Outcome, Taken};
use crate::client_hello::ClientHello;
use crate::connections::{Ends, Route, Side};
use crate::frame::{Content, Frame, Malformed, Packet, Segment};
use crate::hold::{Copied, FarStep, Step};
use crate::judge::{Reason, Verdict};
use crate::offload::Offload;
use crate::reply;

/// The fate of a frame that was taken.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Frames for the far side, in this order.
    pub to_far: Vec<Copied>,
    /// They are sent once more. Each was a frame of the guest once.
    pub is_repeated: bool,
    /// A frame for the guest.
    pub to_guest: Option<Vec<u8>>,
    /// Why the frame does not pass, if it does not.
    pub cause: Option<Cause>,
}

impl Held {
    fn stop(cause: Cause) -> Self {
        Self { cause: Some(cause), ..Self::default() }
    }
}

impl Filter {
    /// Takes a frame of a connection that begins with TLS, which [`Filter::outgoing`] judged to be one.
    pub fn hold(&mut self, copied: &Copied, offload: Offload, now: Instant) -> Held {
        let bytes = &copied.frame[..];
        let malformed = |why| Held::stop(Cause::Malformed(why));
        let frame = match Frame::parse(bytes, bytes.len()) {
            Ok(frame) => frame,
            Err(why) => return malformed(why),
        };
        let Content::Packet(packet) = &frame.content else { return malformed(Malformed::Length) };
        let (Some(ends), Some(segment)) = (ends(packet, Side::Guest), segment(packet)) else {
            return malformed(Malformed::Length);
        };
        // A wrong one would be dropped by the far side, each time that the copy is sent.
        if offload.checksum.is_none() && !packet.has_right_checksum(bytes) {
            return malformed(Malformed::Checksum);
        }
        let payload = &bytes[packet.payload.0..packet.payload.1];
        let Some(Route::Held(hold)) = self.connections.route(&ends) else {
            return Held::stop(Cause::Unknown);
        };
        let mut step = hold.take(copied, segment, payload, now);
        if step == Step::Full {
            self.connections.end_late_holds(now);
            step = match self.connections.route(&ends) {
                Some(Route::Held(hold)) => hold.take(copied, segment, payload, now),
                _ => Step::Full,
            };
        }
        let reason = match step {
            Step::Keep => return Held::default(),
            Step::Acknowledge(next) => {
                let to_guest = reply::acknowledgement(&frame, packet, segment, next);
                return Held { to_guest, ..Held::default() };
            }
            Step::Send(to_far) => return Held { to_far, ..Held::default() },
            Step::SendAgain(to_far) => return Held { to_far, is_repeated: true, ..Held::default() },
            Step::Full => return Held::stop(Cause::Full),
            Step::Judge(hello) => match self.judge_hello(&ends, hello) {
                Ok(to_far) => return Held { to_far, ..Held::default() },
                Err(reason) => reason,
            },
            Step::Refuse(why) => Reason::Unclear(why),
        };
        self.refuse(&ends, (&frame, packet, segment), copied, reason)
    }

    /// Judges the name of a connection. Returns the frames that pass.
    fn judge_hello(&mut self, ends: &Ends, hello: ClientHello) -> Result<Vec<Copied>, Reason> {
        if let Verdict::Deny(reason) = self.judge.hello(ends.far, &hello) {
            return Err(reason);
        }
        match self.connections.route(ends) {
            Some(Route::Held(hold)) => Ok(hold.allow(hello)),
            _ => Ok(Vec::new()),
        }
    }

    /// Ends a connection at both sides.
    fn refuse(
        &mut self,
        ends: &Ends,
        (frame, packet, segment): (&Frame, &Packet, &Segment),
        copied: &Copied,
        reason: Reason,
    ) -> Held {
        let sent_up_to = match self.connections.route(ends) {
            Some(Route::Held(hold)) => hold.sent_up_to(),
            _ => segment.sequence,
        };
        self.connections.remove(ends);
        let cause = Cause::Denied { protocol: Some(ends.protocol), far: ends.far, reason };
        let reset = reply::lone_reset((frame.source, frame.target), ends.guest, ends.far, sent_up_to);
        let to_far = reset.into_iter().map(Copied::made).collect();
        let Outcome::Stop(cause, to_guest) = self.denied(cause, frame, packet, &copied.frame) else {
            return Held::default();
        };
        Held { to_far, to_guest, cause: Some(cause), is_repeated: false }
    }

    /// Takes a segment of the far side of a held connection. `bytes` are those of its frame.
    pub(super) fn far_of_held(&mut self, ends: &Ends, packet: &Packet, bytes: &[u8]) -> Outcome {
        let (Some(segment), Some(Route::Held(hold))) = (segment(packet), self.connections.route(ends)) else {
            return Outcome::Stop(Cause::Unknown, None);
        };
        if segment.flags.syn {
            return match hold.far_opens(segment) {
                true => Outcome::Pass,
                false => Outcome::Stop(Cause::Unknown, None),
            };
        }
        if segment.flags.rst {
            // The guest judges its number.
            return Outcome::Pass;
        }
        let Some(payload) = bytes.get(packet.payload.0..packet.payload.1) else {
            return Outcome::Stop(Cause::Malformed(Malformed::Length), None);
        };
        match hold.far(segment, payload) {
            FarStep::Pass => Outcome::Pass,
            FarStep::Over => {
                self.connections.release(ends);
                Outcome::Pass
            }
            FarStep::Drop => Outcome::Stop(Cause::Unknown, None),
            FarStep::Refuse(why) => {
                // The guest's next segment belongs to no connection, and gets a reset.
                self.connections.remove(ends);
                let reason = Reason::Unclear(why);
                let cause = Cause::Denied { protocol: Some(ends.protocol), far: ends.far, reason };
                Outcome::Stop(cause, None)
            }
        }
    }

    /// The route of a frame of the guest on a connection that the table has.
    pub(super) fn on_route(route: &mut Route, segment: Option<&Segment>, payload: usize) -> Outcome {
        let flags = segment.map(|segment| segment.flags).unwrap_or_default();
        match route {
            Route::Direct => Outcome::Pass,
            Route::Relayed => Outcome::Take(Taken::Request),
            Route::Held(_) if flags.syn && payload > 0 => {
                Outcome::Stop(Cause::Malformed(Malformed::Early), None)
            }
            Route::Held(_) if flags.syn && (flags.ack || flags.fin || flags.rst) => {
                Outcome::Stop(Cause::Unknown, None)
            }
            Route::Held(hold) if flags.syn => {
                let restarts = segment.is_some_and(|segment| hold.restart(segment.sequence.wrapping_add(1)));
                if restarts { Outcome::Pass } else { Outcome::Stop(Cause::Unknown, None) }
            }
            Route::Held(_) if flags.rst => Outcome::Pass,
            // An acknowledgement alone.
            Route::Held(hold) if payload == 0 && !flags.fin && !flags.urg => {
                match segment.is_some_and(|segment| hold.passes_empty(segment)) {
                    true => Outcome::Pass,
                    false => Outcome::Stop(Cause::Unknown, None),
                }
            }
            Route::Held(_) => Outcome::Take(Taken::Hello),
        }
    }
}
