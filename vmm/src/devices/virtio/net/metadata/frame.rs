//! Frames of a guest to the metadata service: how to tell them, and what the service needs to know of them
//! beside their content.

use std::net::Ipv4Addr;

use crate::config::network::Mac;

/// The service's hardware address, which is Firecracker's, so that guests with a fixed one work.
pub(super) const MAC: Mac = [0x06, 0x01, 0x23, 0x45, 0x67, 0x01];

/// Bytes that [`is_for_service`] needs.
pub(super) const START: usize = ARP_TARGET.end;

/// Offsets in a frame.
const SOURCE: std::ops::Range<usize> = 6..12;
const TYPE: std::ops::Range<usize> = 12..14;
const TYPE_IPV4: [u8; 2] = [0x08, 0x00];
const TYPE_ARP: [u8; 2] = [0x08, 0x06];
/// The same of fields of IPv4 (RFC 791) and of ARP (RFC 826).
const IP: usize = 14;
const IP_FRAGMENT: std::ops::Range<usize> = IP + 6..IP + 8;
const IP_PROTOCOL: usize = IP + 9;
const IP_SOURCE: std::ops::Range<usize> = IP + 12..IP + 16;
const IP_TARGET: std::ops::Range<usize> = IP + 16..IP + 20;
const ARP_TARGET: std::ops::Range<usize> = 38..42;
const TCP: u8 = 6;
/// Offset of the flags in a TCP header (RFC 9293), and two of them.
const TCP_FLAGS: usize = 13;
/// The port of the service.
pub(super) const PORT: u16 = 80;
const SYN: u8 = 2;
const ACK: u8 = 16;

/// Whether a frame with this start goes to the service at `address`: a question for the address, or IPv4 to
/// it.
pub(super) fn is_for_service(start: &[u8], address: Ipv4Addr) -> bool {
    let target = match start.get(TYPE) {
        Some(kind) if kind == TYPE_IPV4 => IP_TARGET,
        Some(kind) if kind == TYPE_ARP => ARP_TARGET,
        _ => return false,
    };
    start.get(target).is_some_and(|target| target == address.octets())
}

/// The use that the service has for a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// It is dropped: no TCP, a fragment, or too short.
    Nothing,
    Arp,
    Segment {
        sender: Sender,
        /// The sender's port, if it opens a connection to the service.
        opens: Option<u16>,
    },
}

/// The addresses of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sender {
    mac: Mac,
    address: Ipv4Addr,
}

/// Looks at a frame for the service.
pub(super) fn use_of(frame: &[u8]) -> Use {
    if frame.get(TYPE) == Some(&TYPE_ARP) {
        return Use::Arp;
    }
    let (Some(fragment), Some(&protocol)) = (frame.get(IP_FRAGMENT), frame.get(IP_PROTOCOL)) else {
        return Use::Nothing;
    };
    // More fragments follow, or this is not the first.
    let is_fragment = u16::from_be_bytes([fragment[0], fragment[1]]) & 0x3fff != 0;
    if is_fragment || protocol != TCP {
        return Use::Nothing;
    }
    let header_len = usize::from(frame[IP] & 0xf) * 4;
    let segment = frame.get(IP + header_len..).unwrap_or_default();
    let (Some(ports), Some(flags)) = (segment.first_chunk::<4>(), segment.get(TCP_FLAGS)) else {
        return Use::Nothing;
    };
    let [source, target] = [[ports[0], ports[1]], [ports[2], ports[3]]].map(u16::from_be_bytes);
    let opens = flags & (SYN | ACK) == SYN && target == PORT;
    Use::Segment { sender: Sender::of(frame), opens: opens.then_some(source) }
}

impl Sender {
    /// Its IPv4 address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The sender of a frame with an IPv4 header.
    fn of(frame: &[u8]) -> Self {
        let (mut mac, mut address) = (Mac::default(), [0; 4]);
        mac.copy_from_slice(&frame[SOURCE]);
        address.copy_from_slice(&frame[IP_SOURCE]);
        Self { mac, address: address.into() }
    }

    /// An answer of ARP by which the sender would announce its hardware address to the service at `address`.
    /// The service then needs no ARP of its own. A small guest, or one without a route to the service, may
    /// not answer that.
    pub fn announcement(&self, address: Ipv4Addr) -> Vec<u8> {
        let ethernet_to_ipv4 = [0, 1, 8, 0, 6, 4];
        let answer = [0, 2];
        let (own, service) = (self.address.octets(), address.octets());
        [&MAC, &self.mac, &TYPE_ARP[..], &ethernet_to_ipv4, &answer, &self.mac, &own, &MAC, &service].concat()
    }
}

/// Directs a frame to the service's hardware address. The guest may send it to a gateway.
pub(super) fn redirect(frame: &mut [u8]) {
    if let Some(target) = frame.first_chunk_mut() {
        *target = MAC;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);

    /// A frame of IPv4 with a TCP header.
    fn segment(target: Ipv4Addr, protocol: u8, fragment: u16, flags: u8) -> Vec<u8> {
        let mut frame = vec![0; 54];
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        frame[TYPE].copy_from_slice(&TYPE_IPV4);
        frame[IP] = 0x45;
        frame[IP_FRAGMENT].copy_from_slice(&fragment.to_be_bytes());
        frame[IP_PROTOCOL] = protocol;
        frame[IP_SOURCE].copy_from_slice(&[10, 0, 0, 2]);
        frame[IP_TARGET].copy_from_slice(&target.octets());
        frame[34..36].copy_from_slice(&4000_u16.to_be_bytes());
        frame[36..38].copy_from_slice(&PORT.to_be_bytes());
        frame[34 + TCP_FLAGS] = flags;
        frame
    }

    #[test]
    fn frames_to_the_address_are_told_from_others() {
        assert!(is_for_service(&segment(ADDRESS, TCP, 0, SYN)[..START], ADDRESS));
        assert!(is_for_service(&segment(ADDRESS, 17, 0, 0), ADDRESS), "no protocol reaches the backend");
        assert!(!is_for_service(&segment(Ipv4Addr::new(169, 254, 169, 253), TCP, 0, SYN), ADDRESS));
        let arp = Sender::of(&segment(ADDRESS, TCP, 0, SYN)).announcement(ADDRESS);
        assert!(is_for_service(&arp, ADDRESS));
        assert!(!is_for_service(&arp, Ipv4Addr::new(169, 254, 169, 253)));
        let mut other = segment(ADDRESS, TCP, 0, SYN);
        other[TYPE.start] = 0x86;
        assert!(!is_for_service(&other, ADDRESS));
        for len in 0..IP_TARGET.end {
            assert!(!is_for_service(&segment(ADDRESS, TCP, 0, SYN)[..len], ADDRESS), "{len}");
        }
        for len in 0..ARP_TARGET.end {
            assert!(!is_for_service(&arp[..len], ADDRESS), "{len}");
        }
    }

    #[test]
    fn only_whole_segments_and_arp_are_used() {
        let opening = segment(ADDRESS, TCP, 0x4000, SYN);
        let sender = Sender { mac: [2, 0, 0, 0, 0, 1], address: Ipv4Addr::new(10, 0, 0, 2) };
        assert_eq!(use_of(&opening), Use::Segment { sender, opens: Some(4000) });
        let mut to_another_port = opening.clone();
        to_another_port[37] = 81;
        assert_eq!(use_of(&to_another_port), Use::Segment { sender, opens: None });
        let announcement = sender.announcement(ADDRESS);
        assert_eq!((announcement.len(), use_of(&announcement)), (42, Use::Arp));
        for flags in [ACK, SYN | ACK, 0] {
            let expected = Use::Segment { sender, opens: None };
            assert_eq!(use_of(&segment(ADDRESS, TCP, 0, flags)), expected);
        }
        for frame in [
            segment(ADDRESS, 17, 0, SYN),
            segment(ADDRESS, TCP, 0x2000, SYN),
            segment(ADDRESS, TCP, 1, SYN),
            opening[..47].to_vec(),
            opening[..20].to_vec(),
        ] {
            assert_eq!(use_of(&frame), Use::Nothing, "{frame:?}");
        }
    }

    #[test]
    fn frame_to_a_gateway_is_redirected() {
        let mut frame = segment(ADDRESS, TCP, 0, SYN);
        redirect(&mut frame);
        assert_eq!(frame[..6], MAC);
        redirect(&mut []);
    }
}
