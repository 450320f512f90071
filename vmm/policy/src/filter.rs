//! The filter of one interface: which frames pass, in both directions.
//!
//! ```text
//!  guest ──> shape, sender ──> neighbours, DHCP ──> known connection ──> policy ──> pass, and a connection
//!                  └ drop                                                   └ answer, or drop
//!  far side ──> shape ──> neighbours, DHCP ──> known connection, or a forward ──> pass
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use etherparse::{Ipv4HeaderSlice, Ipv6HeaderSlice, icmpv4, icmpv6, ip_number};
use ipnet::Ipv6Net;

use crate::connections::{Connections, Ends, Side};
use crate::frame::{Arp, Content, Frame, ICMP, Mac, Malformed, Packet, Segment, Transport, is_link_local};
use crate::judge::{Judge, Reason, Verdict};
use crate::offload::Offload;
use crate::policy::Denial;
use crate::reply;
use crate::rule::Protocol;

/// Addresses of a guest, if they are known. Frames with others are dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestAddresses {
    /// Its address of IPv4.
    pub v4: Ipv4Addr,
    /// The network that has its addresses of IPv6.
    pub v6: Ipv6Net,
}

impl GuestAddresses {
    /// An address of IPv4, and an address of IPv6 with the bits of its network.
    ///
    /// # Panics
    /// There are more than 128 bits.
    #[must_use]
    pub fn new(v4: Ipv4Addr, (v6, prefix): (Ipv6Addr, u8)) -> Self {
        Self { v4, v6: Ipv6Net::new_assert(v6, prefix).trunc() }
    }
}

/// The interface of a filter.
#[derive(Clone, Debug)]
pub struct Interface {
    /// The hardware address.
    pub mac: Mac,
    /// The guest's addresses.
    pub addresses: Option<GuestAddresses>,
    /// Resolvers: port 53 of them is open.
    pub resolvers: Vec<IpAddr>,
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
    /// There is no room for another connection.
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
            Self::Full => f.write_str("too many connections"),
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
}

/// The filter of one interface.
#[derive(Debug)]
pub struct Filter {
    judge: Arc<Judge>,
    interface: Interface,
    connections: Connections,
    /// The guest may get answers of DHCP until then.
    asks_until: Option<Instant>,
    /// Addresses on the link, by their messages, the latest last. Only if the guest's own are not known.
    neighbours: VecDeque<Ipv6Addr>,
}

/// Packets that have rules of their own.
enum Kind {
    /// A client of DHCP and its servers.
    Dhcp,
    /// Neighbours and routers.
    Discovery,
    /// A message of ICMP that is no echo.
    Message,
    /// Any other packet: it belongs to a connection, or has a protocol without one.
    Other,
}

fn drop_of(why: Malformed) -> Outcome {
    Outcome::Stop(Cause::Malformed(why), None)
}

impl Filter {
    /// A filter without connections.
    #[must_use]
    pub fn new(judge: Arc<Judge>, interface: Interface) -> Self {
        let (connections, neighbours) = (Connections::default(), VecDeque::new());
        Self { judge, interface, connections, asks_until: None, neighbours }
    }

    /// Takes another policy. Connections that it denies end.
    pub fn change(&mut self, judge: Arc<Judge>) {
        self.judge = judge;
        let Self { judge, interface, connections, .. } = self;
        connections.retain(|ends| verdict(judge, interface, ends).is_allow());
    }

    /// Forgets all connections, and has another hardware address.
    pub fn begin_anew(&mut self, mac: Mac) {
        self.interface.mac = mac;
        self.connections = Connections::default();
        self.asks_until = None;
        self.neighbours.clear();
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
            Content::Packet(packet) if offload.fits(packet) => packet,
            Content::Packet(_) => return drop_of(Malformed::Offload),
            _ if !offload.is_none() => return drop_of(Malformed::Offload),
            Content::Arp(arp) if len <= LONGEST_ARP && self.is_own_arp(arp) => return Outcome::Pass,
            Content::Groups { source, kind } if self.may_report(*source, *kind) => return Outcome::Pass,
            Content::Arp(_) | Content::Groups { .. } => return drop_of(Malformed::Neighbour),
        };
        match outgoing_kind(packet) {
            Kind::Dhcp if frame.target == [0xff; 6] || packet.target.is_ipv6() => self.of_dhcp(packet, now),
            Kind::Dhcp => drop_of(Malformed::Neighbour),
            Kind::Discovery => self.of_discovery(&frame, packet, head),
            _ if !self.may_send_from(packet.source) => drop_of(Malformed::Address),
            Kind::Message => Outcome::Stop(Cause::Unknown, None),
            Kind::Other => match ends(packet, Side::Guest) {
                Some(ends) => self.of_connection(&frame, packet, head, (ends, now)),
                None => {
                    let far = (packet.target, 0);
                    let denied = Cause::Denied { protocol: None, far, reason: Reason::Default };
                    self.denied(denied, &frame, packet, head)
                }
            },
        }
    }

    /// Judges a frame for the guest, as [`Self::outgoing`].
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
        if self.connections.follow(&ends, Side::Far, segment, now) {
            return Outcome::Pass;
        }
        let opens = segment.is_some_and(|segment| segment.flags.syn && !segment.flags.ack);
        if !opens || !self.interface.forwarded.contains(&ends.guest.1) {
            return Outcome::Stop(Cause::Unknown, None);
        }
        match self.connections.begin(ends, Side::Far, now) {
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
        if self.connections.follow(&ends, Side::Guest, segment, now) {
            return Outcome::Pass;
        }
        if let Verdict::Deny(reason) = verdict(&self.judge, &self.interface, &ends) {
            let denied = Cause::Denied { protocol: Some(ends.protocol), far: ends.far, reason };
            return self.denied(denied, frame, packet, head);
        }
        if segment.is_some_and(|segment| !segment.flags.syn || segment.flags.ack) {
            // The connection is from before a restore, or was forgotten. A reset ends it for the guest.
            return Outcome::Stop(Cause::Unknown, reply::to_denied(frame, packet, head));
        }
        match self.connections.begin(ends, Side::Guest, now) {
            true => Outcome::Pass,
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

    /// Whether a message of ARP speaks of the guest alone. A probe has no address yet.
    fn is_own_arp(&self, arp: &Arp) -> bool {
        let is_own = arp.sender.is_unspecified() || self.may_send_from(arp.sender.into());
        arp.is_usual && arp.sender_mac == self.interface.mac && is_own
    }

    /// Whether the guest may have an address. If its own are not known, those of the host are foreign anyway.
    fn may_send_from(&self, source: IpAddr) -> bool {
        match (&self.interface.addresses, source) {
            (Some(addresses), IpAddr::V4(v4)) => v4 == addresses.v4,
            (Some(addresses), IpAddr::V6(v6)) => addresses.v6.contains(&v6) || is_link_local(v6),
            (None, source) => !self.judge.is_foreign(source),
        }
    }

    fn may_report(&self, source: Ipv6Addr, kind: u8) -> bool {
        REPORTS.contains(&kind) && (source.is_unspecified() || self.may_send_from(source.into()))
    }

    /// Judges a datagram of DHCP. A client without an address has 0.0.0.0.
    fn of_dhcp(&mut self, packet: &Packet, now: Instant) -> Outcome {
        if !packet.source.is_unspecified() && !self.may_send_from(packet.source) {
            return drop_of(Malformed::Address);
        }
        if packet.payload.1 - packet.payload.0 > LONGEST_DHCP {
            return drop_of(Malformed::Length);
        }
        self.asks_until = Some(now + ASKS);
        Outcome::Pass
    }

    /// Remembers an address on the link: the hop limit has proved it.
    fn remember(&mut self, address: IpAddr) {
        let IpAddr::V6(v6) = address else { return };
        let is_of_no_use = is_link_local(v6) || v6.is_unspecified() || v6.is_multicast();
        if self.interface.addresses.is_some() || is_of_no_use {
            return;
        }
        self.neighbours.retain(|other| *other != v6);
        self.neighbours.push_back(v6);
        if self.neighbours.len() > MOST_NEIGHBOURS {
            self.neighbours.pop_front();
        }
    }

    /// Judges a message about neighbours or routers (RFC 4861, section 4). `::` is valid as its source.
    fn of_discovery(&self, frame: &Frame, packet: &Packet, head: &[u8]) -> Outcome {
        if !packet.source.is_unspecified() && !self.may_send_from(packet.source) {
            return drop_of(Malformed::Address);
        }
        let (IpAddr::V6(target), Transport::Icmp { kind, code: 0, .. }) = (packet.target, packet.transport)
        else {
            return drop_of(Malformed::Neighbour);
        };
        let (from, to) = packet.payload;
        if to - from > LONGEST_DISCOVERY || !self.is_discovered_at(kind, target, frame.target) {
            return drop_of(Malformed::Neighbour);
        }
        let Some(body) = head.get(from..to) else { return drop_of(Malformed::Length) };
        // A solicitation of routers has options alone. Others have an address before them.
        let (address, options) = match kind {
            icmpv6::TYPE_ROUTER_SOLICITATION => (None, body),
            _ => match body.split_first_chunk::<16>() {
                Some((address, options)) => (Some(Ipv6Addr::from(*address)), options),
                None => return drop_of(Malformed::Length),
            },
        };
        let advertises = kind == icmpv6::TYPE_NEIGHBOR_ADVERTISEMENT;
        let is_own = address.is_none_or(|address| !advertises || self.may_send_from(address.into()));
        match is_own && self.are_own(options) {
            true => Outcome::Pass,
            false => drop_of(Malformed::Neighbour),
        }
    }

    /// Whether a message of this type goes to an address, and to a hardware address, where it belongs.
    fn is_discovered_at(&self, kind: u8, target: Ipv6Addr, mac: Mac) -> bool {
        let [.., high, low] = target.segments();
        let is_solicited = target == Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, high, low) && high >> 8 == 0xff;
        let is_group = match kind {
            icmpv6::TYPE_ROUTER_SOLICITATION => target == ALL_ROUTERS,
            icmpv6::TYPE_NEIGHBOR_SOLICITATION => is_solicited,
            _ => target == ALL_NODES,
        };
        let [_, _, _, _, _, _, _, _, _, _, _, _, a, b, c, d] = target.octets();
        let is_near = match &self.interface.addresses {
            _ if is_link_local(target) => true,
            Some(own) => own.v6.contains(&target),
            None => self.neighbours.contains(&target),
        };
        is_near || is_group && mac == [0x33, 0x33, a, b, c, d]
    }

    /// Whether the hardware addresses in options are the guest's (RFC 4861, section 4.6.1).
    fn are_own(&self, mut options: &[u8]) -> bool {
        while let [kind, units, ..] = *options {
            let Some((option, rest)) = options.split_at_checked(usize::from(units) * 8) else { return false };
            if option.is_empty() || matches!(kind, 1 | 2) && option.get(2..8) != Some(&self.interface.mac[..])
            {
                return false;
            }
            options = rest;
        }
        options.is_empty()
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
        self.connections.follow(&ends, Side::Far, None, now)
    }
}

/// The verdict on a connection that the guest begins. Resolvers of the interface are open to questions,
/// unless a rule denies them.
fn verdict(judge: &Judge, interface: &Interface, ends: &Ends) -> Verdict {
    let verdict = judge.address(ends.protocol, ends.far.0, ends.far.1);
    let asks =
        (ends.protocol, ends.far.1) == (Protocol::Udp, DNS) && interface.resolvers.contains(&ends.far.0);
    match verdict {
        Verdict::Deny(Reason::Range(_) | Reason::Default) if asks => Verdict::Allow(Reason::Default),
        verdict => verdict,
    }
}

/// The port of resolvers.
const DNS: u16 = 53;
/// Ports of DHCP (RFC 2131, section 4.1) and DHCPv6 (RFC 8415, section 7.2): those of clients and servers.
const DHCP: [u16; 2] = [68, 67];
const DHCP6: [u16; 2] = [546, 547];
/// All servers of DHCPv6 on a link, all nodes and all routers.
const DHCP6_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// The hop limit of neighbour discovery: such a packet has passed no router (RFC 4861, section 7.1).
const OF_LINK: u8 = 255;
/// Time for answers of DHCP.
const ASKS: Duration = Duration::from_secs(60);
/// Most bytes of messages that pass whatever the policy says: a padded frame of ARP, the body of a message of
/// neighbour discovery, and one of DHCP.
const LONGEST_ARP: usize = 60;
const LONGEST_DISCOVERY: usize = 64;
const LONGEST_DHCP: usize = 1472;
/// Most neighbours that are remembered.
const MOST_NEIGHBOURS: usize = 32;
/// Messages about groups: a router's question, and a guest's reports (RFC 2710, RFC 3810).
const QUERY: u8 = icmpv6::TYPE_MULTICAST_LISTENER_QUERY;
const REPORTS: [u8; 3] =
    [icmpv6::TYPE_MULTICAST_LISTENER_REPORT, icmpv6::TYPE_MULTICAST_LISTENER_REDUCTION, 143];

fn outgoing_kind(packet: &Packet) -> Kind {
    match packet.transport {
        Transport::Udp { source, target } if is_dhcp([source, target], packet.target) => Kind::Dhcp,
        Transport::Icmp { kind, .. } if is_discovery(packet, kind, SENT) => Kind::Discovery,
        Transport::Icmp { kind, .. } if !reply::is_echo(packet, kind) => Kind::Message,
        _ => Kind::Other,
    }
}

fn incoming_kind(packet: &Packet) -> Kind {
    match packet.transport {
        // From a server to a client: the guest's port comes first.
        Transport::Udp { source, target } if is_dhcp_answer([target, source], packet.source) => Kind::Dhcp,
        Transport::Icmp { kind, .. } if is_discovery(packet, kind, GOT) => Kind::Discovery,
        Transport::Icmp { kind, .. } if !is_echo_reply(packet, kind) => Kind::Message,
        _ => Kind::Other,
    }
}

/// The ends of the connection that a packet of this side belongs to.
fn ends(packet: &Packet, side: Side) -> Option<Ends> {
    let (protocol, from, to) = match packet.transport {
        Transport::Tcp(segment) => (Protocol::Tcp, segment.source, segment.target),
        Transport::Udp { source, target } => (Protocol::Udp, source, target),
        Transport::Icmp { identifier, .. } if side == Side::Guest => (Protocol::Icmp, identifier, 0),
        Transport::Icmp { identifier, .. } => (Protocol::Icmp, 0, identifier),
        Transport::Other(_) => return None,
    };
    let (from, to) = ((packet.source, from), (packet.target, to));
    let (guest, far) = if side == Side::Guest { (from, to) } else { (to, from) };
    Some(Ends { protocol, guest, far })
}

fn segment(packet: &Packet) -> Option<&Segment> {
    match &packet.transport {
        Transport::Tcp(segment) => Some(segment),
        _ => None,
    }
}

/// Whether a datagram is one of a client of DHCP to all servers of its link. One to a single server could
/// have any content, for any machine.
fn is_dhcp(ports: [u16; 2], target: IpAddr) -> bool {
    match target {
        IpAddr::V4(v4) => ports == DHCP && v4.is_broadcast(),
        IpAddr::V6(v6) => ports == DHCP6 && v6 == DHCP6_SERVERS,
    }
}

/// Whether a datagram is one of a server of DHCP. A server of DHCPv6 is on the link.
fn is_dhcp_answer(ports: [u16; 2], source: IpAddr) -> bool {
    match source {
        IpAddr::V4(_) => ports == DHCP,
        IpAddr::V6(v6) => ports == DHCP6 && is_link_local(v6),
    }
}

/// Messages about neighbours and routers that a guest may send, and those that it may get. A guest is no
/// router, and none redirects it.
const SENT: [u8; 3] = [
    icmpv6::TYPE_ROUTER_SOLICITATION,
    icmpv6::TYPE_NEIGHBOR_SOLICITATION,
    icmpv6::TYPE_NEIGHBOR_ADVERTISEMENT,
];
const GOT: [u8; 3] = [
    icmpv6::TYPE_ROUTER_ADVERTISEMENT,
    icmpv6::TYPE_NEIGHBOR_SOLICITATION,
    icmpv6::TYPE_NEIGHBOR_ADVERTISEMENT,
];

/// Whether a message is one of these, and from this link.
fn is_discovery(packet: &Packet, kind: u8, kinds: [u8; 3]) -> bool {
    packet.target.is_ipv6() && packet.hop_limit == OF_LINK && kinds.contains(&kind)
}

fn is_echo_reply(packet: &Packet, kind: u8) -> bool {
    let reply = if packet.target.is_ipv4() { icmpv4::TYPE_ECHO_REPLY } else { icmpv6::TYPE_ECHO_REPLY };
    kind == reply
}

/// The ends of the connection of which an error of ICMP quotes a packet: its IP header, and 8 bytes at least.
fn quoted_ends(quoted: &[u8], guest: IpAddr) -> Option<Ends> {
    let (source, target, protocol, rest) = match guest {
        IpAddr::V4(_) => {
            let header = Ipv4HeaderSlice::from_slice(quoted).ok()?;
            let rest = quoted.get(header.slice().len()..)?;
            (IpAddr::V4(header.source_addr()), IpAddr::V4(header.destination_addr()), header.protocol(), rest)
        }
        IpAddr::V6(_) => {
            let header = Ipv6HeaderSlice::from_slice(quoted).ok()?;
            let rest = quoted.get(header.slice().len()..)?;
            (
                IpAddr::V6(header.source_addr()),
                IpAddr::V6(header.destination_addr()),
                header.next_header(),
                rest,
            )
        }
    };
    let [a, b, c, d, e, f, ..] = *rest.first_chunk::<ICMP>()?;
    let [first, second, third] = [[a, b], [c, d], [e, f]].map(u16::from_be_bytes);
    let (protocol, ports) = match protocol {
        ip_number::TCP => (Protocol::Tcp, (first, second)),
        ip_number::UDP => (Protocol::Udp, (first, second)),
        ip_number::ICMP | ip_number::IPV6_ICMP => (Protocol::Icmp, (third, 0)),
        _ => return None,
    };
    (source == guest).then_some(Ends { protocol, guest: (source, ports.0), far: (target, ports.1) })
}

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
