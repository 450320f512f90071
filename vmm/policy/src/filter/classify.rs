//! Packets that have rules of their own, and the connection that a packet belongs to.

use std::net::IpAddr;

use etherparse::{Ipv4HeaderSlice, Ipv6HeaderSlice, icmpv4, icmpv6, ip_number};

use super::link::{GOT, SENT, is_dhcp, is_dhcp_answer, is_discovery};
use crate::connections::{Ends, Side};
use crate::frame::{ICMP, Packet, Segment, Transport};
use crate::reply;
use crate::rule::Protocol;

/// Packets that have rules of their own.
pub(super) enum Kind {
    /// A client of DHCP and its servers.
    Dhcp,
    /// Neighbours and routers.
    Discovery,
    /// A message of ICMP that is no echo.
    Message,
    /// Any other packet: it belongs to a connection, or has a protocol without one.
    Other,
}

pub(super) fn outgoing_kind(packet: &Packet) -> Kind {
    match packet.transport {
        Transport::Udp { source, target } if is_dhcp([source, target], packet.target) => Kind::Dhcp,
        Transport::Icmp { kind, .. } if is_discovery(packet, kind, SENT) => Kind::Discovery,
        Transport::Icmp { kind, .. } if !reply::is_echo(packet, kind) => Kind::Message,
        _ => Kind::Other,
    }
}

pub(super) fn incoming_kind(packet: &Packet) -> Kind {
    match packet.transport {
        // From a server to a client: the guest's port comes first.
        Transport::Udp { source, target } if is_dhcp_answer([target, source], packet.source) => Kind::Dhcp,
        Transport::Icmp { kind, .. } if is_discovery(packet, kind, GOT) => Kind::Discovery,
        Transport::Icmp { kind, .. } if !is_echo_reply(packet, kind) => Kind::Message,
        _ => Kind::Other,
    }
}

/// The ends of the connection that a packet of this side belongs to.
pub(super) fn ends(packet: &Packet, side: Side) -> Option<Ends> {
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

pub(super) fn segment(packet: &Packet) -> Option<&Segment> {
    match &packet.transport {
        Transport::Tcp(segment) => Some(segment),
        _ => None,
    }
}

/// The ends of the connection of which an error of ICMP quotes a packet: its IP header, and 8 bytes at least.
pub(super) fn quoted_ends(quoted: &[u8], guest: IpAddr) -> Option<Ends> {
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

fn is_echo_reply(packet: &Packet, kind: u8) -> bool {
    let reply = if packet.target.is_ipv4() { icmpv4::TYPE_ECHO_REPLY } else { icmpv6::TYPE_ECHO_REPLY };
    kind == reply
}
