//! Frames that tell a guest that its packet is denied: a reset of TCP (RFC 9293, section 3.10.7.1), else
//! "administratively prohibited" of ICMP (RFC 1812, section 5.2.7.1; RFC 4443, section 3.1).

use std::net::IpAddr;

use etherparse::{Ethernet2Header, Icmpv4Type, Icmpv6Type, PacketBuilder, PacketBuilderStep};
use etherparse::{IpHeaders, icmpv4, icmpv6};

use crate::frame::{Content, ETHERNET, Frame, Mac, Packet, Segment, Transport};

/// Routers that an answer may pass.
const HOPS: u8 = 64;
/// Bytes of the denied packet in a message of ICMP: its IP header and 8 bytes, at most.
const QUOTED: usize = 60 + 8;

/// The reset for a segment of TCP in a whole frame. There is none for a reset, and for any other frame.
#[must_use]
pub fn reset_for(frame: &[u8]) -> Option<Vec<u8>> {
    let frame = Frame::parse(frame, frame.len()).ok()?;
    match frame.content {
        Content::Packet(packet @ Packet { transport: Transport::Tcp(segment), .. }) => {
            reset(&frame, &packet, &segment)
        }
        _ => None,
    }
}

/// The answer to a denied packet of the guest, whose first bytes are `head`. There is none to a reset, to a
/// message of ICMP that is no question, and to a group.
pub(crate) fn to_denied(frame: &Frame, packet: &Packet, head: &[u8]) -> Option<Vec<u8>> {
    if is_group(packet.target) {
        return None;
    }
    match packet.transport {
        Transport::Tcp(segment) => reset(frame, packet, &segment),
        Transport::Icmp { kind, .. } if !is_echo(packet, kind) => None,
        _ => prohibited(frame, packet, head),
    }
}

/// Whether a message of ICMP asks for an echo.
pub(crate) fn is_echo(packet: &Packet, kind: u8) -> bool {
    let echo = if packet.target.is_ipv4() { icmpv4::TYPE_ECHO_REQUEST } else { icmpv6::TYPE_ECHO_REQUEST };
    kind == echo
}

fn is_group(address: IpAddr) -> bool {
    address.is_multicast() || address == IpAddr::V4(std::net::Ipv4Addr::BROADCAST)
}

/// An Ethernet and an IP header from one end to the other. `None` if they have two versions of IP.
fn header((source, target): (Mac, Mac), from: IpAddr, to: IpAddr) -> Option<PacketBuilderStep<IpHeaders>> {
    let ethernet: PacketBuilderStep<Ethernet2Header> = PacketBuilder::ethernet2(source, target);
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => Some(ethernet.ipv4(from.octets(), to.octets(), HOPS)),
        (IpAddr::V6(from), IpAddr::V6(to)) => Some(ethernet.ipv6(from.octets(), to.octets(), HOPS)),
        _ => None,
    }
}

/// The same back to the sender, with the far side as the source.
fn back(frame: &Frame, packet: &Packet) -> Option<PacketBuilderStep<IpHeaders>> {
    header((frame.target, frame.source), packet.target, packet.source)
}

fn reset(frame: &Frame, packet: &Packet, segment: &Segment) -> Option<Vec<u8>> {
    if segment.flags.rst {
        return None;
    }
    let back = back(frame, packet)?;
    let sequence = if segment.flags.ack { segment.acknowledged } else { 0 };
    let reset = back.tcp(segment.target, segment.source, sequence, 0).rst();
    let reset = if segment.flags.ack { reset } else { reset.ack(segment.end()) };
    let mut bytes = Vec::with_capacity(reset.size(0));
    reset.write(&mut bytes, &[]).ok()?;
    Some(bytes)
}

/// A reset from one end of a connection to the other one, which expects the byte with this number next.
/// Returns `None` if the ends have two versions of IP.
pub(crate) fn lone_reset(
    macs: (Mac, Mac),
    from: (IpAddr, u16),
    to: (IpAddr, u16),
    sequence: u32,
) -> Option<Vec<u8>> {
    let reset = header(macs, from.0, to.0)?.tcp(from.1, to.1, sequence, 0).rst();
    let mut bytes = Vec::with_capacity(reset.size(0));
    reset.write(&mut bytes, &[]).ok()?;
    Some(bytes)
}

/// A datagram that answers a datagram of the guest.
pub(crate) fn datagram(frame: &Frame, packet: &Packet, payload: &[u8]) -> Option<Vec<u8>> {
    let Transport::Udp { source, target } = packet.transport else { return None };
    let datagram = back(frame, packet)?.udp(target, source);
    let mut bytes = Vec::with_capacity(datagram.size(payload.len()));
    datagram.write(&mut bytes, payload).ok()?;
    Some(bytes)
}

fn prohibited(frame: &Frame, packet: &Packet, head: &[u8]) -> Option<Vec<u8>> {
    let back = back(frame, packet)?;
    let end = packet.payload.1.min(head.len()).min(ETHERNET + QUOTED);
    let quoted = head.get(ETHERNET..end)?;
    let mut bytes = Vec::with_capacity(ETHERNET + 40 + 8 + QUOTED);
    let written = if packet.source.is_ipv4() {
        let why = icmpv4::DestUnreachableHeader::FilterProhibited;
        back.icmpv4(Icmpv4Type::DestinationUnreachable(why)).write(&mut bytes, quoted)
    } else {
        let why = icmpv6::DestUnreachableCode::Prohibited;
        back.icmpv6(Icmpv6Type::DestinationUnreachable(why)).write(&mut bytes, quoted)
    };
    written.ok()?;
    Some(bytes)
}
