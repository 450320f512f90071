//! Ethernet frames, as far as their headers tell. A frame that another machine could read differently, or
//! that hides its target, is refused: options and fragments of IPv4, all extension headers of IPv6, tags.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{
    ArpOperation, ArpPacketSlice, EtherType, Ethernet2HeaderSlice, IpNumber, Ipv4HeaderSlice,
    Ipv6HeaderSlice, TcpHeaderSlice, TcpSlice, UdpHeaderSlice, ether_type, ip_number,
};

/// A hardware address.
pub type Mac = [u8; 6];

/// Bytes of a frame that [`Frame::parse`] needs, or all of a shorter frame: an Ethernet header, the longest
/// one of IPv4, and the longest one of TCP.
pub const HEAD: usize = ETHERNET + 60 + 60;
/// Bytes of an Ethernet header, of an ICMP header, and of one of UDP.
pub(crate) const ETHERNET: usize = 14;
pub(crate) const ICMP: usize = 8;
const UDP: usize = 8;

/// Why a frame is dropped, whatever the policy says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Malformed {
    /// A header is cut off, or a length contradicts another one.
    Length,
    /// A tag of a VLAN, or a protocol other than IP and ARP.
    EtherType,
    /// A hardware address that is not the interface's.
    Mac,
    /// An address that is not the guest's.
    Address,
    /// A wrong checksum of a header of IPv4.
    Checksum,
    /// Options of IPv4, such as a source route, or an extension header of IPv6.
    Options,
    /// A fragment.
    Fragment,
    /// A message of ARP, of neighbour discovery or of DHCP about another machine, or of a wrong form.
    Neighbour,
    /// A request to fill in or cut what is not the packet's own.
    Offload,
    /// Data before the connection is open, where a name is judged first.
    Early,
    /// A connection of several paths (MPTCP), where a name is judged first: its bytes have an order of their
    /// own. Linux tries again without.
    Multipath,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Length => "wrong length",
            Self::EtherType => "no IP or ARP",
            Self::Mac => "foreign hardware address",
            Self::Address => "foreign address",
            Self::Checksum => "wrong checksum",
            Self::Options => "options or extension header",
            Self::Fragment => "fragment",
            Self::Neighbour => "foreign neighbour",
            Self::Offload => "wrong offload",
            Self::Early => "data before the connection is open",
            Self::Multipath => "connection of several paths",
        })
    }
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Hardware address of the sender.
    pub source: Mac,
    /// Hardware address of the receiver.
    pub target: Mac,
    /// The content.
    pub content: Content,
}

/// The content of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// ARP for IPv4 (RFC 826).
    Arp(Arp),
    /// A packet of IP.
    Packet(Packet),
    /// A message to the routers of the link about groups of IPv6 (RFC 3810). It has an extension header.
    Groups {
        /// Address of the sender.
        source: Ipv6Addr,
        /// The message's type.
        kind: u8,
    },
}

/// A message of ARP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// Hardware address that the sender gives itself.
    pub sender_mac: Mac,
    /// Address that the sender gives itself. A probe has 0.0.0.0 (RFC 5227).
    pub sender: Ipv4Addr,
    /// Whether it asks or answers.
    pub is_usual: bool,
}

/// A packet of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Address of the sender.
    pub source: IpAddr,
    /// Address of the receiver.
    pub target: IpAddr,
    /// Routers that the packet may still pass.
    pub hop_limit: u8,
    /// The protocol above IP.
    pub transport: Transport,
    /// Where its header begins in the frame.
    pub transport_at: usize,
    /// Where the protocol's payload is in the frame, without padding.
    pub payload: (usize, usize),
}

/// The kind of the option of multipath TCP (RFC 8684, section 3).
const MULTIPATH: u8 = 30;

impl Packet {
    /// Whether a segment asks for several paths. One whose options cannot be read does.
    pub(crate) fn has_multipath(&self, head: &[u8]) -> bool {
        let header = head.get(self.transport_at..self.payload.0).unwrap_or_default();
        let Ok(header) = TcpHeaderSlice::from_slice(header) else { return true };
        let mut options = header.options();
        loop {
            // An end and a filler have no length (RFC 9293, section 3.1).
            options = match *options {
                [] | [0, ..] => return false,
                [1, ref rest @ ..] => rest,
                [MULTIPATH, ..] => return true,
                [_, len, ..] if len >= 2 && usize::from(len) <= options.len() => &options[usize::from(len)..],
                _ => return true,
            };
        }
    }

    /// Whether the checksum of a segment of TCP in this frame is right.
    pub(crate) fn has_right_checksum(&self, frame: &[u8]) -> bool {
        let bytes = frame.get(self.transport_at..self.payload.1).unwrap_or_default();
        let Ok(segment) = TcpSlice::from_slice(bytes) else { return false };
        let right = match (self.source, self.target) {
            (IpAddr::V4(from), IpAddr::V4(to)) => segment.calc_checksum_ipv4(from.octets(), to.octets()).ok(),
            (IpAddr::V6(from), IpAddr::V6(to)) => segment.calc_checksum_ipv6(from.octets(), to.octets()).ok(),
            _ => None,
        };
        right == Some(segment.checksum())
    }
}

/// The protocol above IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A segment of TCP.
    Tcp(Segment),
    /// A datagram of UDP.
    Udp {
        /// Port of the sender.
        source: u16,
        /// Port of the receiver.
        target: u16,
    },
    /// A message of ICMP or ICMPv6.
    Icmp {
        /// Its type.
        kind: u8,
        /// Its code.
        code: u8,
        /// The identifier of an echo.
        identifier: u16,
    },
    /// Another protocol, by its number.
    Other(u8),
}

/// A segment of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Port of the sender.
    pub source: u16,
    /// Port of the receiver.
    pub target: u16,
    /// Number of its first byte.
    pub sequence: u32,
    /// Number of the next byte that the sender expects, if `ack` is set.
    pub acknowledged: u32,
    /// Bytes of its payload.
    pub len: u32,
    /// Its flags.
    pub flags: Flags,
}

impl Segment {
    /// Number behind it: a SYN and a FIN have one each.
    #[must_use]
    pub fn end(&self) -> u32 {
        let flags = u32::from(self.flags.syn) + u32::from(self.flags.fin);
        self.sequence.wrapping_add(self.len).wrapping_add(flags)
    }
}

/// Distance from one number of a stream to another.
pub(crate) fn distance(from: u32, to: u32) -> i32 {
    to.wrapping_sub(from).cast_signed()
}

/// Flags of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)]
pub struct Flags {
    /// It opens a connection.
    pub syn: bool,
    /// It acknowledges.
    pub ack: bool,
    /// It ends a direction.
    pub fin: bool,
    /// It ends the connection.
    pub rst: bool,
    /// It is the last one of what the sender's program has written.
    pub psh: bool,
    /// A part of its data is urgent.
    pub urg: bool,
}

impl Frame {
    /// Reads the headers of a frame of `len` bytes, of which `head` has the first [`HEAD`] or all.
    ///
    /// # Errors
    /// A header is cut off or malformed.
    pub fn parse(head: &[u8], len: usize) -> Result<Self, Malformed> {
        let ethernet = Ethernet2HeaderSlice::from_slice(head).map_err(|_| Malformed::Length)?;
        let rest = &head[ETHERNET..];
        let left = len.checked_sub(ETHERNET).filter(|left| *left >= rest.len()).ok_or(Malformed::Length)?;
        let content = match ethernet.ether_type() {
            ether_type::ARP => arp(rest).map(Content::Arp),
            ether_type::IPV4 => ipv4(rest, left).map(Content::Packet),
            ether_type::IPV6 => match groups(rest, left, ethernet.destination()) {
                Some(groups) => Ok(groups),
                None => ipv6(rest, left).map(Content::Packet),
            },
            EtherType(_) => Err(Malformed::EtherType),
        };
        content.map(|content| Self { source: ethernet.source(), target: ethernet.destination(), content })
    }
}

fn arp(bytes: &[u8]) -> Result<Arp, Malformed> {
    let packet = ArpPacketSlice::from_slice(bytes).map_err(|_| Malformed::Length)?.to_packet();
    let packet = packet.try_eth_ipv4().map_err(|_| Malformed::EtherType)?;
    let is_usual = [ArpOperation::REQUEST, ArpOperation::REPLY].contains(&packet.operation);
    Ok(Arp { sender_mac: packet.sender_mac, sender: packet.sender_ipv4.into(), is_usual })
}

fn ipv4(bytes: &[u8], left: usize) -> Result<Packet, Malformed> {
    let header = Ipv4HeaderSlice::from_slice(bytes).map_err(|_| Malformed::Length)?;
    let (start, end) = (header.slice().len(), usize::from(header.total_len()));
    if end < start || end > left {
        return Err(Malformed::Length);
    }
    if !header.options().is_empty() {
        return Err(Malformed::Options);
    }
    if header.is_fragmenting_payload() {
        return Err(Malformed::Fragment);
    }
    if header.to_header().calc_header_checksum() != header.header_checksum() {
        return Err(Malformed::Checksum);
    }
    let (transport, headers) = transport(header.protocol(), ip_number::ICMP, &bytes[start..], end - start)?;
    Ok(Packet {
        source: header.source_addr().into(),
        target: header.destination_addr().into(),
        hop_limit: header.ttl(),
        transport,
        transport_at: ETHERNET + start,
        payload: (ETHERNET + start + headers, ETHERNET + end),
    })
}

fn ipv6(bytes: &[u8], left: usize) -> Result<Packet, Malformed> {
    let header = Ipv6HeaderSlice::from_slice(bytes).map_err(|_| Malformed::Length)?;
    let start = header.slice().len();
    let end = start + usize::from(header.payload_length());
    if end > left {
        return Err(Malformed::Length);
    }
    match header.next_header() {
        ip_number::IPV6_FRAGMENTATION_HEADER => return Err(Malformed::Fragment),
        next if next.is_ipv6_ext_header_value() => return Err(Malformed::Options),
        _ => {}
    }
    let (transport, headers) =
        transport(header.next_header(), ip_number::IPV6_ICMP, &bytes[start..], end - start)?;
    Ok(Packet {
        source: header.source_addr().into(),
        target: header.destination_addr().into(),
        hop_limit: header.hop_limit(),
        transport,
        transport_at: ETHERNET + start,
        payload: (ETHERNET + start + headers, ETHERNET + end),
    })
}

/// A message about groups, in the one form that it has: a hop-by-hop header with nothing but a router alert
/// (RFC 2711), one hop, from an address of the link to a group of the link.
fn groups(bytes: &[u8], left: usize, mac: Mac) -> Option<Content> {
    /// The header, behind which ICMPv6 comes.
    const ALERT: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];
    /// Fewest and most bytes behind the header of IPv6: a report has 20 for each group.
    const LENGTHS: std::ops::RangeInclusive<usize> = 16..=1460;
    let header = Ipv6HeaderSlice::from_slice(bytes).ok()?;
    let rest = bytes.get(header.slice().len()..)?;
    let (source, target) = (header.source_addr(), header.destination_addr());
    let is_near = header.hop_limit() == 1
        && (source.is_unspecified() || is_link_local(source))
        && target.segments()[0] == 0xff02;
    let (len, [.., a, b, c, d]) = (usize::from(header.payload_length()), target.octets());
    let is_whole = LENGTHS.contains(&len) && header.slice().len() + len == left;
    let is_near = is_near && mac == [0x33, 0x33, a, b, c, d];
    let has_alert = header.next_header() == ip_number::IPV6_HEADER_HOP_BY_HOP && rest.starts_with(&ALERT);
    let kind = *rest.get(ALERT.len())?;
    (is_near && is_whole && has_alert).then_some(Content::Groups { source, kind })
}

/// Reads the header above IP, of `len` bytes of which `bytes` are known. `icmp` is the number of this
/// version's ICMP. Returns the length of the header too.
fn transport(
    protocol: IpNumber,
    icmp: IpNumber,
    bytes: &[u8],
    len: usize,
) -> Result<(Transport, usize), Malformed> {
    let bytes = &bytes[..bytes.len().min(len)];
    match protocol {
        ip_number::TCP => {
            let header = TcpHeaderSlice::from_slice(bytes).map_err(|_| Malformed::Length)?;
            let segment = Segment {
                source: header.source_port(),
                target: header.destination_port(),
                sequence: header.sequence_number(),
                acknowledged: header.acknowledgment_number(),
                len: (len - header.slice().len()) as u32, // of a packet of IP, so shorter than 64 KiB
                flags: Flags {
                    syn: header.syn(),
                    ack: header.ack(),
                    fin: header.fin(),
                    rst: header.rst(),
                    psh: header.psh(),
                    urg: header.urg(),
                },
            };
            Ok((Transport::Tcp(segment), header.slice().len()))
        }
        ip_number::UDP => {
            let header = UdpHeaderSlice::from_slice(bytes).map_err(|_| Malformed::Length)?;
            if usize::from(header.length()) != len {
                return Err(Malformed::Length);
            }
            Ok((Transport::Udp { source: header.source_port(), target: header.destination_port() }, UDP))
        }
        number if number == icmp => {
            let header: &[u8; ICMP] = bytes.first_chunk().ok_or(Malformed::Length)?;
            let [kind, code, _, _, high, low, ..] = *header;
            Ok((Transport::Icmp { kind, code, identifier: u16::from_be_bytes([high, low]) }, ICMP))
        }
        IpNumber(number) => Ok((Transport::Other(number), 0)),
    }
}

/// Whether an address of IPv6 is of one link alone.
pub(crate) fn is_link_local(address: Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80
}

#[cfg(test)]
mod tests {
    use etherparse::{ArpOperation, ArpPacket, Ethernet2Header, PacketBuilder};

    use super::*;

    const US: Mac = [2, 0, 0, 0, 0, 1];
    const THEM: Mac = [2, 0, 0, 0, 0, 2];
    const V4: [[u8; 4]; 2] = [[10, 118, 111, 15], [192, 0, 2, 1]];

    fn v6(last: u16) -> [u8; 16] {
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last).octets()
    }

    fn tcp4(payload: &[u8]) -> Vec<u8> {
        let builder = PacketBuilder::ethernet2(US, THEM).ipv4(V4[0], V4[1], 64).tcp(4000, 443, 7, 1000).syn();
        let mut bytes = Vec::new();
        builder.write(&mut bytes, payload).unwrap();
        bytes
    }

    fn udp6(payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let builder = PacketBuilder::ethernet2(US, THEM).ipv6(v6(1), v6(2), 64).udp(4000, 53);
        builder.write(&mut bytes, payload).unwrap();
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Frame, Malformed> {
        Frame::parse(&bytes[..bytes.len().min(HEAD)], bytes.len())
    }

    fn packet(bytes: &[u8]) -> Packet {
        match parse(bytes).unwrap().content {
            Content::Packet(packet) => packet,
            other => panic!("{other:?}"),
        }
    }

    /// Writes the checksum of a header of IPv4 anew.
    fn sum(bytes: &mut [u8]) {
        let header = Ipv4HeaderSlice::from_slice(&bytes[ETHERNET..]).unwrap().to_header();
        bytes[24..26].copy_from_slice(&header.calc_header_checksum().to_be_bytes());
    }

    #[test]
    fn headers_of_tcp_and_udp_are_read() {
        let bytes = tcp4(b"hello");
        let found = packet(&bytes);
        assert_eq!(found.source, IpAddr::from(V4[0]));
        assert_eq!(found.target, IpAddr::from(V4[1]));
        assert_eq!(&bytes[found.payload.0..found.payload.1], b"hello");
        let Transport::Tcp(segment) = found.transport else { panic!("{found:?}") };
        assert_eq!((segment.source, segment.target, segment.sequence), (4000, 443, 7));
        assert_eq!(segment.flags, Flags { syn: true, ..Flags::default() });
        let bytes = udp6(b"question");
        let found = packet(&bytes);
        assert_eq!(found.target, IpAddr::from(v6(2)));
        assert_eq!(found.transport, Transport::Udp { source: 4000, target: 53 });
        assert_eq!(&bytes[found.payload.0..found.payload.1], b"question");
    }

    #[test]
    fn padding_is_no_payload_and_a_long_frame_needs_its_head_alone() {
        let mut padded = tcp4(b"x");
        padded.resize(60, 0);
        let (from, to) = packet(&padded).payload;
        assert_eq!(to - from, 1);
        let long = tcp4(&[7; 1400]);
        let (from, to) = packet(&long).payload;
        assert_eq!((to - from, to), (1400, long.len()));
    }

    #[test]
    fn every_cut_of_a_frame_is_refused() {
        for bytes in [tcp4(b"abc"), udp6(b"abc")] {
            for len in 0..bytes.len() {
                assert_eq!(parse(&bytes[..len]), Err(Malformed::Length), "{len}");
            }
        }
    }

    #[test]
    fn frames_that_hide_their_target_are_refused() {
        let changed = |at: usize, to: &[u8]| {
            let mut bytes = tcp4(b"abcdefgh");
            bytes[at..at + to.len()].copy_from_slice(to);
            sum(&mut bytes);
            bytes
        };
        let options = changed(14, &[0x46]);
        let total_beyond = changed(16, &[0xff, 0xff]);
        let total_short = changed(16, &[0, 19]);
        let more_fragments = changed(20, &[0x20]);
        let offset = changed(21, &[1]);
        let data_offset = changed(46, &[0x40]);
        let vlan = changed(12, &[0x81, 0]);
        let mut checksum = tcp4(b"");
        checksum[24] ^= 1;
        for (bytes, cause) in [
            (options, Malformed::Options),
            (total_beyond, Malformed::Length),
            (total_short, Malformed::Length),
            (more_fragments, Malformed::Fragment),
            (offset, Malformed::Fragment),
            (data_offset, Malformed::Length),
            (vlan, Malformed::EtherType),
            (checksum, Malformed::Checksum),
        ] {
            assert_eq!(parse(&bytes), Err(cause));
        }
        for (next, cause) in [
            (0, Malformed::Options),
            (43, Malformed::Options),
            (44, Malformed::Fragment),
            (51, Malformed::Options),
            (60, Malformed::Options),
        ] {
            let mut bytes = udp6(b"abcdefgh");
            bytes[20] = next;
            assert_eq!(parse(&bytes), Err(cause), "{next}");
        }
        let mut length = udp6(b"abcdefgh");
        length[59] ^= 1;
        assert_eq!(parse(&length), Err(Malformed::Length));
    }

    #[test]
    fn arp_is_read_for_ethernet_and_ipv4_alone() {
        let message = ArpPacket::new(
            etherparse::ArpHardwareId::ETHERNET,
            ether_type::IPV4,
            ArpOperation::REQUEST,
            &US,
            &V4[0],
            &[0; 6],
            &V4[1],
        )
        .unwrap();
        let ethernet = Ethernet2Header { source: US, destination: [0xff; 6], ether_type: ether_type::ARP };
        let bytes = [&ethernet.to_bytes()[..], &message.to_bytes()].concat();
        let arp = Arp { sender_mac: US, sender: V4[0].into(), is_usual: true };
        assert_eq!(parse(&bytes).unwrap().content, Content::Arp(arp));
        assert_eq!(parse(&bytes[..bytes.len() - 1]), Err(Malformed::Length));
        let mut other = bytes;
        other[15] = 6;
        assert_eq!(parse(&other), Err(Malformed::EtherType));
    }
}
