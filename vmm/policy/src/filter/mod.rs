//! The filter of one interface: which frames pass, in both directions.
//!
//! ```text
//!  guest ──> shape, sender ──> neighbours, DHCP ──> known connection ──> policy ──> pass, and a connection
//!                  └ drop                                                   └ answer, or drop
//!  far side ──> shape ──> neighbours, DHCP ──> known connection, or a forward ──> pass
//! ```

mod classify;
mod held;
#[cfg(test)]
mod held_tests;
mod link;
#[cfg(test)]
mod repeats_tests;
#[cfg(test)]
mod route_tests;
#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod tests;

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use etherparse::{icmpv4, icmpv6};
use ipnet::IpNet;

use crate::connections::{Connections, Ends, OpenConnection, Route, SavedConnection, Side};
use crate::frame::{Content, Frame, Mac, Malformed, Packet, Transport};
use crate::hold::{Budget, Hold};
use crate::judge::{DNS, Gate, HTTP, Judge, Reason};
use crate::name::Name;
use crate::offload::Offload;
use crate::pins::{Pins, SavedPin};
use crate::policy::Denial;
use crate::reply;
use crate::rule::Protocol;
use classify::{Kind, ends, incoming_kind, outgoing_kind, quoted_ends, segment};
pub use held::Held;
use link::{LONGEST_ARP, QUERY};

/// The interface of a filter.
#[derive(Clone, Debug)]
pub struct Interface {
    /// The hardware address.
    pub mac: Mac,
    /// Networks that have the guest's addresses, if they are known. Frames with others are dropped.
    pub addresses: Vec<IpNet>,
    /// Whether the host routes the guest's packets by sockets of its own.
    pub is_routed: bool,
    /// TCP ports of the guest that forwards lead to.
    pub forwarded: Vec<u16>,
}

/// Why a frame does not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It is malformed, or its sender is not the guest.
    Malformed(Malformed),
    /// The policy denies it.
    Denied {
        /// The protocol, unless it is another one.
        protocol: Option<Protocol>,
        /// The far side's address and port.
        far: (IpAddr, u16),
        /// The cause of the verdict.
        reason: Reason,
    },
    /// It belongs to no connection.
    Unknown,
    /// There is no room for another connection, or for a part of its first message.
    Full,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(why) => write!(f, "{why}"),
            Self::Denied { protocol: None, far: (address, _), reason } => {
                write!(f, "a protocol without rules to {address}: {reason}")
            }
            Self::Denied { protocol: Some(Protocol::Icmp), far: (address, _), reason } => {
                write!(f, "icmp to {address}: {reason}")
            }
            Self::Denied { protocol: Some(protocol), far: (address, port), reason } => {
                write!(f, "{} to {address} port {port}: {reason}", protocol.name())
            }
            Self::Unknown => f.write_str("of no connection"),
            Self::Full => f.write_str("too many connections, or first messages of TLS at once"),
        }
    }
}

/// The fate of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It passes.
    Pass,
    /// It does not. The guest may get a frame as the answer.
    Stop(Cause, Option<Vec<u8>>),
    /// The device answers it with this frame.
    Answer(Vec<u8>),
    /// The device takes all of it.
    Take(Taken),
}

/// Frames that do not go on as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A question for a name, by UDP or TCP. The device answers it.
    Question,
    /// The beginning of a connection of TLS: for [`Filter::hold`].
    Hello,
    /// A segment of a connection of HTTP. The device makes another connection to the far side.
    Request,
}

/// The filter of one interface.
#[derive(Debug)]
pub struct Filter {
    judge: Arc<Judge>,
    interface: Interface,
    connections: Connections,
    /// The guest may get answers of DHCP until then.
    asks_until: Option<Instant>,
    pins: Pins,
    held: Budget,
    /// Hardware address of the router that the guest uses.
    router: Option<Mac>,
    /// Addresses on the link, by their messages, the latest last. Only if the guest's own are not known.
    neighbours: VecDeque<Ipv6Addr>,
}

fn drop_of(why: Malformed) -> Outcome {
    Outcome::Stop(Cause::Malformed(why), None)
}

impl Filter {
    /// A filter without connections.
    #[must_use]
    pub fn new(judge: Arc<Judge>, interface: Interface) -> Self {
        Self {
            judge,
            interface,
            connections: Connections::default(),
            asks_until: None,
            pins: Pins::default(),
            held: Budget::default(),
            router: None,
            neighbours: VecDeque::new(),
        }
    }

    /// Takes another policy. Connections that it denies end. Returns the guest's and the far end of those
    /// that the device relays.
    pub fn change(&mut self, judge: Arc<Judge>, now: Instant) -> Vec<((IpAddr, u16), (IpAddr, u16))> {
        self.judge = judge;
        let Self { judge, connections, pins, .. } = self;
        let ended = connections.retain(|ends, route, judged| {
            // A pin holds as long as its connection.
            let names = pins.names(ends.far.0, now, || true);
            match (judge.gate(ends.protocol, ends.far, &names), route) {
                (Gate::Open, _) => true,
                // Whichever name it began with is known, or is judged by the new rules.
                (Gate::Named, Route::Direct) => {
                    judged.is_some_and(|hello| judge.hello(ends.far, hello).is_allow())
                }
                (Gate::Named, Route::Held(hold)) => {
                    hold.judged().is_none_or(|hello| judge.hello(ends.far, hello).is_allow())
                }
                // The relay knows the hosts.
                (Gate::Named, Route::Relayed) => true,
                (Gate::Closed(_), _) => false,
            }
        });
        ended.into_iter().map(|ends| (ends.guest, ends.far)).collect()
    }

    /// Forgets a connection that the device relayed.
    pub fn forget(&mut self, guest: (IpAddr, u16), far: (IpAddr, u16)) {
        self.connections.remove(&Ends { protocol: Protocol::Tcp, guest, far });
    }

    /// Forgets all connections, and has another hardware address.
    pub fn begin_anew(&mut self, mac: Mac) {
        self.interface.mac = mac;
        self.connections = Connections::default();
        self.asks_until = None;
        self.neighbours.clear();
    }

    /// Pins the addresses of a name, with the seconds for which they hold.
    pub fn pin(&mut self, name: &Name, addresses: &[(IpAddr, u32)], now: Instant) {
        for (address, seconds) in addresses {
            self.pins.add(name, *address, *seconds, now);
        }
    }

    /// The open connections of TCP, for a snapshot.
    #[must_use]
    pub fn save_connections(&self) -> Vec<SavedConnection> {
        let mut saved: Vec<_> = self.connections.open().map(|connection| connection.saved).collect();
        saved.sort_unstable_by_key(|connection| (connection.guest, connection.far));
        saved
    }

    /// Takes the open connections out of the table that cannot go on without the device: those of HTTP, which
    /// it relays, and those of TLS whose first message it has. Returns them, and frames that end the latter
    /// for their far sides.
    pub fn end_with_device(&mut self) -> (Vec<SavedConnection>, Vec<Vec<u8>>) {
        let needs_device = |connection: &OpenConnection| connection.needs_device;
        let ended: Vec<OpenConnection> = self.connections.open().filter(needs_device).collect();
        for OpenConnection { saved: SavedConnection { guest, far, .. }, .. } in &ended {
            self.forget(end_of(*guest), end_of(*far));
        }
        let to_far = self.ends_of_far_sides(ended.iter().copied()).collect();
        (ended.iter().map(|connection| connection.saved).collect(), to_far)
    }

    /// Hardware address of the router that the guest uses, if it has used one.
    #[must_use]
    pub fn router(&self) -> Option<Mac> {
        self.router
    }

    /// Frames that end saved connections for the guest, whose router has this hardware address.
    pub fn resets_to_guest(&self, saved: &[SavedConnection], router: Mac) -> impl Iterator<Item = Vec<u8>> {
        let macs = (router, self.interface.mac);
        let reset = move |connection: &SavedConnection| {
            let SavedConnection { guest, far, expects } = *connection;
            reply::lone_reset(macs, end_of(far), end_of(guest), expects)
        };
        saved.iter().filter_map(reset)
    }

    /// Frames that end the guest's connections for their far sides.
    pub fn resets_to_far(&self) -> impl Iterator<Item = Vec<u8>> {
        self.ends_of_far_sides(self.connections.open())
    }

    fn ends_of_far_sides(&self, open: impl Iterator<Item = OpenConnection>) -> impl Iterator<Item = Vec<u8>> {
        let macs = self.router.map(|router| (self.interface.mac, router));
        open.filter_map(
            move |OpenConnection { saved: SavedConnection { guest, far, .. }, far_expects, .. }| {
                reply::lone_reset(macs?, end_of(guest), end_of(far), far_expects?)
            },
        )
    }

    /// The pins, for a snapshot.
    #[must_use]
    pub fn save_pins(&self, now: Instant) -> Vec<SavedPin> {
        let used = self.connections.far_addresses(now);
        self.pins.save(now, |address| used.contains(&address))
    }

    /// Takes the pins of a snapshot in place of all others, for a minute. Returns their names, which have to
    /// be asked for again, and whether for addresses of IPv6.
    pub fn restore_pins(&mut self, saved: &[SavedPin], now: Instant) -> HashSet<(Name, bool)> {
        self.pins.restore(saved, now)
    }

    /// The policy.
    #[must_use]
    pub fn judge(&self) -> &Arc<Judge> {
        &self.judge
    }

    /// Bytes that are held until a name is known.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.bytes()
    }

    /// Number of connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Judges a frame of the guest, of `len` bytes, whose first [`crate::HEAD`] are known, and the work
    /// that it leaves to the host.
    pub fn outgoing(&mut self, head: &[u8], len: usize, offload: Offload, now: Instant) -> Outcome {
        let frame = match Frame::parse(head, len) {
            Ok(frame) if frame.source == self.interface.mac => frame,
            Ok(_) => return drop_of(Malformed::Mac),
            Err(why) => return drop_of(why),
        };
        let packet = match &frame.content {
            Content::Packet(packet) if offload.fits(packet, len) => packet,
            Content::Packet(_) => return drop_of(Malformed::Offload),
            _ if !offload.is_none() => return drop_of(Malformed::Offload),
            Content::Arp(arp) if len <= LONGEST_ARP && self.is_own_arp(arp) => {
                return self.of_neighbour(Ipv4Addr::UNSPECIFIED.into(), || reply::to_arp(head));
            }
            Content::Groups { source, kind } if self.may_report(*source, *kind) => return Outcome::Pass,
            Content::Arp(_) | Content::Groups { .. } => return drop_of(Malformed::Neighbour),
        };
        if frame.target[0] & GROUP == 0 {
            self.router = Some(frame.target);
        }
        match outgoing_kind(packet) {
            Kind::Dhcp if frame.target == [0xff; 6] || packet.target.is_ipv6() => self.of_dhcp(packet, now),
            Kind::Dhcp => drop_of(Malformed::Neighbour),
            Kind::Discovery => self.of_discovery(&frame, packet, head),
            _ if !self.may_send_from(packet.source) => drop_of(Malformed::Address),
            Kind::Message => Outcome::Stop(Cause::Unknown, None),
            Kind::Other => match ends(packet, Side::Guest) {
                Some(ends) if asks(&ends) => Outcome::Take(Taken::Question),
                Some(ends) => self.of_connection(&frame, packet, head, (ends, now)),
                None => {
                    let far = (packet.target, 0);
                    let denied = Cause::Denied { protocol: None, far, reason: Reason::Default };
                    self.denied(denied, &frame, packet, head)
                }
            },
        }
    }

    /// Judges a frame for the guest, of `len` bytes. `head` has all of it, or at least the first
    /// [`crate::HEAD`]: without the rest, data for a held connection is dropped.
    pub fn incoming(&mut self, head: &[u8], len: usize, now: Instant) -> Outcome {
        let frame = match Frame::parse(head, len) {
            Ok(frame) => frame,
            Err(why) => return drop_of(why),
        };
        let packet = match &frame.content {
            Content::Packet(packet) => packet,
            Content::Groups { kind: QUERY, .. } | Content::Arp(_) => return Outcome::Pass,
            Content::Groups { .. } => return Outcome::Stop(Cause::Unknown, None),
        };
        match incoming_kind(packet) {
            Kind::Dhcp if self.asks_until.is_some_and(|until| now < until) => return Outcome::Pass,
            Kind::Discovery => {
                self.remember(packet.source);
                return Outcome::Pass;
            }
            Kind::Message if self.is_about_connection(packet, head, now) => return Outcome::Pass,
            Kind::Message => return Outcome::Stop(Cause::Unknown, None),
            Kind::Dhcp | Kind::Other => {}
        }
        let Some(ends) = ends(packet, Side::Far) else { return Outcome::Stop(Cause::Unknown, None) };
        let segment = segment(packet);
        match self.connections.follow(&ends, Side::Far, segment, now) {
            Some(Route::Direct) => return Outcome::Pass,
            Some(Route::Relayed) => return Outcome::Take(Taken::Request),
            Some(Route::Held(_)) => return self.far_of_held(&ends, packet, head),
            None => {}
        }
        let opens = segment.is_some_and(|segment| segment.flags.syn && !segment.flags.ack);
        if !opens || !self.interface.forwarded.contains(&ends.guest.1) || self.connections.has(&ends) {
            return Outcome::Stop(Cause::Unknown, None);
        }
        match self.connections.begin(ends, Side::Far, Route::Direct, now) {
            true => Outcome::Pass,
            false => Outcome::Stop(Cause::Full, None),
        }
    }

    fn of_connection(
        &mut self,
        frame: &Frame,
        packet: &Packet,
        head: &[u8],
        (ends, now): (Ends, Instant),
    ) -> Outcome {
        let segment = segment(packet);
        let payload = packet.payload.1 - packet.payload.0;
        if let Some(route) = self.connections.follow(&ends, Side::Guest, segment, now) {
            // A SYN may come again, and with other options.
            if matches!(route, Route::Held(_)) && segment.is_some() && packet.has_multipath(head) {
                return drop_of(Malformed::Multipath);
            }
            return Self::on_route(route, segment, payload);
        }
        // Behind the host's own sockets, a packet without a route would be lost, and the guest would wait.
        if self.interface.is_routed && !self.judge.is_routed(ends.far.0) {
            let cause =
                Cause::Denied { protocol: Some(ends.protocol), far: ends.far, reason: Reason::NoRoute };
            return Outcome::Stop(cause, reply::to_denied(frame, packet, head));
        }
        let connections = &self.connections;
        let names = self.pins.names(ends.far.0, now, || connections.lead_to(ends.far.0, now));
        let gate = self.judge.gate(ends.protocol, ends.far, &names);
        let is_opening = segment.is_none_or(|segment| segment.flags.syn && !segment.flags.ack);
        if let Gate::Closed(reason) = gate {
            let denied = Cause::Denied { protocol: Some(ends.protocol), far: ends.far, reason };
            return match is_opening {
                true => self.denied(denied, frame, packet, head),
                // As below, also where the policy denies in silence: the guest would wait.
                false => Outcome::Stop(denied, reply::to_denied(frame, packet, head)),
            };
        }
        if !is_opening {
            // The connection is from before a restore, or was forgotten. A reset ends it for the guest.
            return Outcome::Stop(Cause::Unknown, reply::to_denied(frame, packet, head));
        }
        let backward = Ends { guest: ends.far, far: ends.guest, ..ends };
        if self.connections.has(&backward) {
            // Where the host leads it back, the guest would answer in the far side's place.
            return drop_of(Malformed::Address);
        }
        let (route, outcome) = match (gate, segment) {
            (Gate::Named, Some(_)) if payload > 0 => return drop_of(Malformed::Early),
            (Gate::Named, Some(_)) if packet.has_multipath(head) => return drop_of(Malformed::Multipath),
            (Gate::Named, Some(_)) if ends.far.1 == HTTP => (Route::Relayed, Outcome::Take(Taken::Request)),
            (Gate::Named, Some(segment)) => {
                let budget = self.held.limited(self.judge.most_held());
                let hold = Hold::new(segment.sequence.wrapping_add(1), &budget);
                (Route::Held(Box::new(hold)), Outcome::Pass)
            }
            _ => (Route::Direct, Outcome::Pass),
        };
        match self.connections.begin(ends, Side::Guest, route, now) {
            true => outcome,
            false => Outcome::Stop(Cause::Full, None),
        }
    }

    fn denied(&self, cause: Cause, frame: &Frame, packet: &Packet, head: &[u8]) -> Outcome {
        let answer = match self.judge.denial {
            Denial::Reject => reply::to_denied(frame, packet, head),
            Denial::Drop => None,
        };
        Outcome::Stop(cause, answer)
    }

    /// Whether an error of ICMP quotes a packet of a connection.
    fn is_about_connection(&mut self, packet: &Packet, head: &[u8], now: Instant) -> bool {
        let Transport::Icmp { kind, .. } = packet.transport else { return false };
        let is_error = match packet.target {
            IpAddr::V4(_) => {
                [icmpv4::TYPE_DEST_UNREACH, icmpv4::TYPE_TIME_EXCEEDED, icmpv4::TYPE_PARAMETER_PROBLEM]
                    .contains(&kind)
            }
            IpAddr::V6(_) => (icmpv6::TYPE_DST_UNREACH..=icmpv6::TYPE_PARAMETER_PROBLEM).contains(&kind),
        };
        let quoted = head.get(packet.payload.0..).unwrap_or_default();
        let Some(ends) = quoted_ends(quoted, packet.target).filter(|_| is_error) else { return false };
        self.connections.follow(&ends, Side::Far, None, now).is_some()
    }
}

/// The bit of a hardware address that makes it one of a group.
const GROUP: u8 = 1;

fn end_of(address: SocketAddr) -> (IpAddr, u16) {
    (address.ip(), address.port())
}

/// Whether a packet asks a resolver.
fn asks(ends: &Ends) -> bool {
    ends.far.1 == DNS && ends.protocol != Protocol::Icmp
}
