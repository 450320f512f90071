//! The filter of one interface: which frames pass, in both directions.
//!
//! ```text
//!  guest ──> shape, sender ──> neighbours, DHCP ──> known connection ──> policy ──> pass, and a connection
//!                  └ drop                                                   └ answer, or drop
//!  far side ──> shape ──> neighbours, DHCP ──> known connection, or a forward ──> pass
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Instant;

use etherparse::{Ipv4HeaderSlice, Ipv6HeaderSlice, icmpv4, icmpv6, ip_number};
use ipnet::Ipv6Net;

use crate::connections::{Connections, Ends, Side};
use crate::frame::{Arp, Content, Frame, ICMP, Mac, Malformed, Packet, Transport, is_link_local};
use crate::judge::{Judge, Reason, Verdict};
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
}

/// A frame that needs no judgement, or the connection that it belongs to.
enum Kind {
    /// Neighbours and DHCP: the guest's own link.
    Link,
    Of(Ends),
    /// A protocol that no rule names.
    Other,
    /// A message of ICMP that is no echo.
    Message,
}

fn drop_of(why: Malformed) -> Outcome {
    Outcome::Stop(Cause::Malformed(why), None)
}

impl Filter {
    /// A filter without connections.
    #[must_use]
    pub fn new(judge: Arc<Judge>, interface: Interface) -> Self {
        Self { judge, interface, connections: Connections::default() }
    }

    /// Takes another policy. Connections that it denies end.
    pub fn change(&mut self, judge: Arc<Judge>) {
        self.judge = judge;
        let Self { judge, interface, connections } = self;
        connections.retain(|ends| {
            is_resolver(interface, ends) || judge.address(ends.protocol, ends.far.0, ends.far.1).is_allow()
        });
    }

    /// Number of connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Judges a frame of the guest, of `len` bytes, whose first [`crate::HEAD`] are known.
    pub fn outgoing(&mut self, head: &[u8], len: usize, now: Instant) -> Outcome {
        let frame = match Frame::parse(head, len) {
            Ok(frame) if frame.source == self.interface.mac => frame,
            Ok(_) => return drop_of(Malformed::Mac),
            Err(why) => return drop_of(why),
        };
        let packet = match &frame.content {
            Content::Arp(arp) if self.is_own_arp(arp) => return Outcome::Pass,
            Content::Arp(_) => return drop_of(Malformed::Neighbour),
            Content::Packet(packet) => packet,
        };
        match outgoing_kind(packet) {
            Kind::Link => self.of_link(packet, head),
            _ if !self.may_send_from(packet.source) => drop_of(Malformed::Address),
            Kind::Of(ends) => self.of_connection(&frame, packet, head, (ends, now)),
            Kind::Other | Kind::Message => {
                let denied =
                    Cause::Denied { protocol: None, far: (packet.target, 0), reason: Reason::Default };
                self.denied(denied, &frame, packet, head)
            }
        }
    }

    /// Judges a frame for the guest, as [`Self::outgoing`].
    pub fn incoming(&mut self, head: &[u8], len: usize, now: Instant) -> Outcome {
        let frame = match Frame::parse(head, len) {
            Ok(frame) => frame,
            Err(why) => return drop_of(why),
        };
        let Content::Packet(packet) = &frame.content else { return Outcome::Pass };
        let (ends, segment) = match incoming_kind(packet) {
            Kind::Link => return Outcome::Pass,
            Kind::Message if self.is_about_connection(packet, head, now) => return Outcome::Pass,
            Kind::Message | Kind::Other => return Outcome::Stop(Cause::Unknown, None),
            Kind::Of(ends) => match packet.transport {
                Transport::Tcp(segment) => (ends, Some(segment)),
                _ => (ends, None),
            },
        };
        if self.connections.follow(&ends, Side::Far, segment.as_ref(), now) {
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
        let segment = match &packet.transport {
            Transport::Tcp(segment) => Some(segment),
            _ => None,
        };
        if self.connections.follow(&ends, Side::Guest, segment, now) {
            return Outcome::Pass;
        }
        if !is_resolver(&self.interface, &ends)
            && let Verdict::Deny(reason) = self.judge.address(ends.protocol, ends.far.0, ends.far.1)
        {
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
        let is_own = |addresses: &GuestAddresses| arp.sender == addresses.v4 || arp.sender.is_unspecified();
        arp.sender_mac == self.interface.mac && self.interface.addresses.as_ref().is_none_or(is_own)
    }

    fn may_send_from(&self, source: IpAddr) -> bool {
        match (&self.interface.addresses, source) {
            (Some(addresses), IpAddr::V4(v4)) => v4 == addresses.v4,
            (Some(addresses), IpAddr::V6(v6)) => addresses.v6.contains(&v6) || is_link_local(v6),
            (None, source) => !source.is_multicast() && !source.is_loopback() && !source.is_unspecified(),
        }
    }

    fn is_of_link(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V6(v6) if is_link_local(v6) => true,
            IpAddr::V6(v6) => self.interface.addresses.as_ref().is_some_and(|own| own.v6.contains(&v6)),
            IpAddr::V4(_) => false,
        }
    }

    /// Judges a packet to the link itself. `::` and 0.0.0.0 are valid there.
    fn of_link(&self, packet: &Packet, head: &[u8]) -> Outcome {
        if !packet.source.is_unspecified() && !self.may_send_from(packet.source) {
            return drop_of(Malformed::Address);
        }
        let Transport::Icmp { kind, .. } = packet.transport else { return Outcome::Pass };
        // Others are no neighbours: a router would send the message on.
        if !packet.target.is_multicast() && !self.is_of_link(packet.target) {
            return drop_of(Malformed::Neighbour);
        }
        if kind != icmpv6::TYPE_NEIGHBOR_ADVERTISEMENT {
            return Outcome::Pass;
        }
        // The address that it says is the guest's (RFC 4861, section 4.4).
        let advertised = head.get(packet.payload.0..).and_then(|rest| rest.first_chunk::<16>());
        match advertised {
            Some(address) if self.may_send_from(Ipv6Addr::from(*address).into()) => Outcome::Pass,
            Some(_) => drop_of(Malformed::Neighbour),
            None => drop_of(Malformed::Length),
        }
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

fn is_resolver(interface: &Interface, ends: &Ends) -> bool {
    ends.protocol != Protocol::Icmp && ends.far.1 == DNS && interface.resolvers.contains(&ends.far.0)
}

/// The port of resolvers.
const DNS: u16 = 53;
/// Ports of DHCP (RFC 2131, section 4.1) and DHCPv6 (RFC 8415, section 7.2): those of clients and servers.
const DHCP: [u16; 2] = [68, 67];
const DHCP6: [u16; 2] = [546, 547];
/// All servers of DHCPv6 on a link.
const DHCP6_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
/// The hop limit of neighbour discovery: such a packet has passed no router (RFC 4861, section 7.1).
const OF_LINK: u8 = 255;

fn outgoing_kind(packet: &Packet) -> Kind {
    let (guest, far) = (packet.source, packet.target);
    match packet.transport {
        Transport::Tcp(segment) => Kind::Of(Ends {
            protocol: Protocol::Tcp,
            guest: (guest, segment.source),
            far: (far, segment.target),
        }),
        Transport::Udp { source, target } if is_dhcp([source, target], far) => Kind::Link,
        Transport::Udp { source, target } => {
            Kind::Of(Ends { protocol: Protocol::Udp, guest: (guest, source), far: (far, target) })
        }
        Transport::Icmp { kind, identifier, .. } if reply::is_echo(packet, kind) => {
            Kind::Of(Ends { protocol: Protocol::Icmp, guest: (guest, identifier), far: (far, 0) })
        }
        Transport::Icmp { kind, .. } if is_discovery(packet, kind, SENT) => Kind::Link,
        Transport::Icmp { .. } => Kind::Message,
        Transport::Other(_) => Kind::Other,
    }
}

fn incoming_kind(packet: &Packet) -> Kind {
    let (far, guest) = (packet.source, packet.target);
    match packet.transport {
        Transport::Tcp(segment) => Kind::Of(Ends {
            protocol: Protocol::Tcp,
            guest: (guest, segment.target),
            far: (far, segment.source),
        }),
        // From a server to a client: the guest's port comes first.
        Transport::Udp { source, target } if [DHCP, DHCP6].contains(&[target, source]) => Kind::Link,
        Transport::Udp { source, target } => {
            Kind::Of(Ends { protocol: Protocol::Udp, guest: (guest, target), far: (far, source) })
        }
        Transport::Icmp { kind, identifier, .. } if is_echo_reply(packet, kind) => {
            Kind::Of(Ends { protocol: Protocol::Icmp, guest: (guest, identifier), far: (far, 0) })
        }
        Transport::Icmp { kind, .. } if is_discovery(packet, kind, GOT) => Kind::Link,
        Transport::Icmp { .. } => Kind::Message,
        Transport::Other(_) => Kind::Other,
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
