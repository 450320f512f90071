//! Answers of a router to its link: DHCP (RFC 2131) and router advertisements (RFC 4861), with the addresses
//! of [`crate::config::user_network`]. Pure functions on frames.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{Icmpv6Type, PacketBuilder, icmpv6};
use volt_policy::{Content, Frame, OF_LINK, Packet, Transport};

use crate::config::network::Mac;
use crate::config::user_network::{IPV4, IPV6};

/// The link between a guest and its router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// The router's hardware address.
    pub router: Mac,
    /// Longest packet in bytes.
    pub mtu: u16,
    /// The router leads further by IPv6, and advertises that.
    pub has_v6: bool,
}

/// A frame that the link is asked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkRequest {
    Dhcp,
    RouterSolicitation,
    /// A question for a name, to the resolver.
    Question,
}

/// The router's address of the link, from which it advertises itself.
pub(super) const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
/// Ports of DHCP: those of clients and servers. The port of resolvers.
const DHCP: [u16; 2] = [68, 67];
const DNS: u16 = 53;
/// The hop limit of answers that are no neighbour discovery.
const HOPS: u8 = 64;
/// Addresses of all machines on a link.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: Mac = [0x33, 0x33, 0, 0, 0, 1];
/// Seconds for which a router is used, the most possible, and those of a prefix and a lease: without end.
const ROUTER_LIFETIME: u16 = u16::MAX;
const ENDLESS: [u8; 4] = [0xff; 4];

/// Offsets in a message of DHCP.
const FLAGS: std::ops::Range<usize> = 10..12;
const CLIENT: std::ops::Range<usize> = 12..16;
const YOURS: std::ops::Range<usize> = 16..20;
const COOKIE: std::ops::Range<usize> = 236..240;
const MAGIC: [u8; 4] = [99, 130, 83, 99];
const OPTIONS: usize = COOKIE.end;
/// Fewest bytes of an answer of DHCP: BOOTP's.
const LEAST: usize = 300;
/// Options.
const MASK: u8 = 1;
const ROUTER: u8 = 3;
const RESOLVERS: u8 = 6;
const MTU: u8 = 26;
const REQUESTED: u8 = 50;
const LEASE: u8 = 51;
const KIND: u8 = 53;
const SERVER: u8 = 54;
const END: u8 = 255;
/// Kinds of messages.
const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const ACK: u8 = 5;
const NAK: u8 = 6;
const INFORM: u8 = 8;

/// The request in a frame of `len` bytes, of which `head` has the first.
pub(super) fn request(head: &[u8], len: usize) -> Option<LinkRequest> {
    request_in(&packet(head, len)?.1)
}

fn packet(head: &[u8], len: usize) -> Option<(Frame, Packet)> {
    let frame = Frame::parse(head, len).ok()?;
    match frame.content {
        Content::Packet(packet) => Some((frame, packet)),
        _ => None,
    }
}

fn request_in(packet: &Packet) -> Option<LinkRequest> {
    let is_resolver =
        packet.target == IpAddr::V4(IPV4.resolver) || packet.target == IpAddr::V6(IPV6.resolver);
    match packet.transport {
        Transport::Udp { source, target } if [source, target] == DHCP => {
            let targets = [Ipv4Addr::BROADCAST, IPV4.gateway].map(IpAddr::V4);
            targets.contains(&packet.target).then_some(LinkRequest::Dhcp)
        }
        Transport::Udp { target: DNS, .. } if is_resolver => Some(LinkRequest::Question),
        Transport::Tcp(segment) if is_resolver && segment.target == DNS => Some(LinkRequest::Question),
        Transport::Icmp { kind: icmpv6::TYPE_ROUTER_SOLICITATION, code: 0, .. }
            if packet.target.is_ipv6() =>
        {
            (packet.hop_limit == OF_LINK).then_some(LinkRequest::RouterSolicitation)
        }
        _ => None,
    }
}

/// The answer to a whole frame, if it is one of DHCP or of a router's discovery.
pub(super) fn answer(frame: &[u8], link: &Link) -> Option<Vec<u8>> {
    let (headers, packet) = packet(frame, frame.len())?;
    match request_in(&packet)? {
        LinkRequest::Dhcp => dhcp(frame.get(packet.payload.0..packet.payload.1)?, headers.source, link),
        LinkRequest::RouterSolicitation if link.has_v6 => advertisement(packet.source, headers.source, link),
        LinkRequest::RouterSolicitation | LinkRequest::Question => None,
    }
}

/// The value of an option of a message.
fn option(message: &[u8], wanted: u8) -> Option<&[u8]> {
    let mut rest = message.get(OPTIONS..)?;
    loop {
        let (&kind, behind) = rest.split_first()?;
        match kind {
            0 => rest = behind,
            END => return None,
            _ => {
                let (&len, behind) = behind.split_first()?;
                let (value, behind) = behind.split_at_checked(len.into())?;
                if kind == wanted {
                    return Some(value);
                }
                rest = behind;
            }
        }
    }
}

/// The answer to a message of a client.
fn dhcp(message: &[u8], client: Mac, link: &Link) -> Option<Vec<u8>> {
    let is_request = message.starts_with(&[1, 1, 6]) && message.get(COOKIE) == Some(&MAGIC);
    let &[kind] = option(message, KIND).filter(|_| is_request)? else { return None };
    let own = |address: &[u8]| address == IPV4.address.octets();
    let known = message.get(CLIENT)?;
    let is_known = known != [0; 4];
    // A request that another server is meant by is no business of this one.
    let is_other = option(message, SERVER).is_some_and(|server| server != IPV4.gateway.octets());
    let answer = match kind {
        DISCOVER => OFFER,
        REQUEST if is_other => return None,
        REQUEST => {
            let wanted = option(message, REQUESTED).or_else(|| is_known.then_some(known));
            if wanted.is_some_and(own) { ACK } else { NAK }
        }
        INFORM => ACK,
        _ => return None,
    };
    let mut bytes = message[..OPTIONS].to_vec();
    bytes[0] = 2;
    bytes[3] = 0;
    // The addresses but the client's, and names.
    bytes[YOURS.start..28].fill(0);
    bytes[44..COOKIE.start].fill(0);
    if answer != NAK && kind != INFORM {
        bytes[YOURS].copy_from_slice(&IPV4.address.octets());
    }
    let mut add = |kind: u8, value: &[u8]| {
        bytes.extend([kind, value.len() as u8]); // values are short
        bytes.extend(value);
    };
    add(KIND, &[answer]);
    add(SERVER, &IPV4.gateway.octets());
    if answer != NAK {
        if kind != INFORM {
            add(LEASE, &ENDLESS);
        }
        add(MASK, &(u32::MAX << (32 - IPV4.prefix)).to_be_bytes());
        add(ROUTER, &IPV4.gateway.octets());
        add(RESOLVERS, &IPV4.resolver.octets());
        add(MTU, &link.mtu.to_be_bytes());
    }
    bytes.push(END);
    bytes.resize(bytes.len().max(LEAST), 0);
    let asks_for_broadcast = message.get(FLAGS).is_some_and(|flags| flags[0] & 0x80 != 0);
    let target = match answer {
        NAK => Ipv4Addr::BROADCAST,
        _ if is_known => known.try_into().map(<[u8; 4]>::into).ok()?,
        _ if asks_for_broadcast => Ipv4Addr::BROADCAST,
        _ => IPV4.address,
    };
    let mac = if target.is_broadcast() { [0xff; 6] } else { client };
    let [to, from] = DHCP;
    let packet = PacketBuilder::ethernet2(link.router, mac)
        .ipv4(IPV4.gateway.octets(), target.octets(), HOPS)
        .udp(from, to);
    let mut frame = Vec::with_capacity(packet.size(bytes.len()));
    packet.write(&mut frame, &bytes).ok()?;
    Some(frame)
}

/// The advertisement to all machines on the link.
pub(super) fn advertisement_to_all(link: &Link) -> Option<Vec<u8>> {
    advertisement(Ipv6Addr::UNSPECIFIED.into(), ALL_NODES_MAC, link)
}

/// The advertisement for a guest that solicits routers, from this address.
fn advertisement(source: IpAddr, client: Mac, link: &Link) -> Option<Vec<u8>> {
    let IpAddr::V6(source) = source else { return None };
    let (target, mac) = if source.is_unspecified() { (ALL_NODES, ALL_NODES_MAC) } else { (source, client) };
    let mut options = Vec::new();
    let (first_half, lifetime) = ([HOPS, 0], ROUTER_LIFETIME.to_be_bytes());
    // No time of reachability, and none between solicitations.
    options.extend([0; 8]);
    options.extend([1, 1]);
    options.extend(link.router);
    options.extend([5, 1, 0, 0]);
    options.extend(u32::from(link.mtu).to_be_bytes());
    // A prefix of the link, from which guests make addresses.
    let prefix = IPV6.address.to_bits() & (u128::MAX << (128 - u32::from(IPV6.prefix)));
    options.extend([3, 4, IPV6.prefix, 0xc0]);
    options.extend([ENDLESS, ENDLESS, [0; 4]].concat());
    options.extend(prefix.to_be_bytes());
    // The resolver (RFC 8106).
    options.extend([25, 3, 0, 0]);
    options.extend(ENDLESS);
    options.extend(IPV6.resolver.octets());
    let second_half = [first_half[0], first_half[1], lifetime[0], lifetime[1]];
    let kind = Icmpv6Type::Unknown {
        type_u8: icmpv6::TYPE_ROUTER_ADVERTISEMENT,
        code_u8: 0,
        bytes5to8: second_half,
    };
    let packet = PacketBuilder::ethernet2(link.router, mac)
        .ipv6(LINK_LOCAL.octets(), target.octets(), OF_LINK)
        .icmpv6(kind);
    let mut frame = Vec::with_capacity(packet.size(options.len()));
    packet.write(&mut frame, &options).ok()?;
    Some(frame)
}

#[cfg(test)]
#[path = "link_answers_tests.rs"]
mod tests;
