//! Frames that answer a guest in the place of others. They tell that its packet is denied: a reset of TCP
//! (RFC 9293, section 3.10.7.1), else "administratively prohibited" of ICMP (RFC 1812, section 5.2.7.1;
//! RFC 4443, section 3.1). They answer for neighbours.

use std::net::{IpAddr, Ipv6Addr};

use etherparse::{
    ArpHardwareId, ArpOperation, ArpPacket, ArpPacketSlice, Ethernet2Header, Icmpv4Type, Icmpv6Type,
    IpHeaders, PacketBuilder, PacketBuilderStep, ether_type, icmpv4, icmpv6,
};

use crate::frame::{Content, ETHERNET, Frame, Mac, Packet, Segment, Transport};

/// The hardware address of the router that the device plays, the same in all VMs: a clone's guest remembers
/// it. It is that of a current passt, so that a guest may change from one to the other.
pub const ROUTER: Mac = [0x9a, 0x55, 0x9a, 0x55, 0x9a, 0x55];
/// The option with the hardware address of an advertised neighbour, and the flags of the message: router,
/// solicited, override (RFC 4861, sections 4.4 and 4.6.1).
const TARGET_LINK_LAYER: u8 = 2;
const SOLICITED_BY_ROUTER: [u8; 4] = [0xe0, 0, 0, 0];
/// The hop limit of neighbour discovery: such a packet has passed no router (RFC 4861, section 7.1).
pub const OF_LINK: u8 = 255;
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

/// The answer to a question of ARP (RFC 826) in a frame: the router has the address. There is none to a probe
/// and to an announcement.
pub(crate) fn to_arp(frame: &[u8]) -> Option<Vec<u8>> {
    let asked = ArpPacketSlice::from_slice(frame.get(ETHERNET..)?).ok()?;
    let (sender, target) = (asked.sender_protocol_addr(), asked.target_protocol_addr());
    if asked.operation() != ArpOperation::REQUEST || sender == target || sender.iter().all(|byte| *byte == 0)
    {
        return None;
    }
    let mac: Mac = asked.sender_hw_addr().try_into().ok()?;
    let (kind, answer) = (ArpHardwareId::ETHERNET, ArpOperation::REPLY);
    let answer = ArpPacket::new(kind, ether_type::IPV4, answer, &ROUTER, target, &mac, sender).ok()?;
    let ethernet = Ethernet2Header { source: ROUTER, destination: mac, ether_type: ether_type::ARP };
    Some([&ethernet.to_bytes()[..], &answer.to_bytes()].concat())
}

/// The answer to a solicitation of a neighbour (RFC 4861, section 4.4) by `sender`, which has this hardware
/// address: the router has the address that is asked for. There is none to one without a sender, or about
/// itself.
pub(crate) fn to_solicitation(mac: Mac, sender: IpAddr, asked: Ipv6Addr) -> Option<Vec<u8>> {
    let IpAddr::V6(sender) = sender else { return None };
    if sender.is_unspecified() || sender == asked {
        return None;
    }
    let body = [&asked.octets()[..], &[TARGET_LINK_LAYER, 1], &ROUTER].concat();
    let kind = icmpv6::TYPE_NEIGHBOR_ADVERTISEMENT;
    let message = Icmpv6Type::Unknown { type_u8: kind, code_u8: 0, bytes5to8: SOLICITED_BY_ROUTER };
    let packet = PacketBuilder::ethernet2(ROUTER, mac).ipv6(asked.octets(), sender.octets(), OF_LINK);
    let packet = packet.icmpv6(message);
    let mut bytes = Vec::with_capacity(packet.size(body.len()));
    packet.write(&mut bytes, &body).ok()?;
    Some(bytes)
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

/// The acknowledgement of the bytes before `next` for the sender of a segment. Its window is the largest: the
/// far side's next segment tells its own.
pub(crate) fn acknowledgement(
    frame: &Frame,
    packet: &Packet,
    segment: &Segment,
    next: u32,
) -> Option<Vec<u8>> {
    let back = back(frame, packet)?.tcp(segment.target, segment.source, segment.acknowledged, u16::MAX);
    let back = back.ack(next);
    let mut bytes = Vec::with_capacity(back.size(0));
    back.write(&mut bytes, &[]).ok()?;
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
