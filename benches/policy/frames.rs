//! Frames of a guest and of its far side.

use std::net::Ipv4Addr;

/// Hardware addresses of the guest and of its router.
pub const GUEST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// The guest's address.
pub const GUEST: Ipv4Addr = Ipv4Addr::new(10, 118, 111, 15);
/// Flags of TCP.
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 0x10;
/// The largest payload of a frame of 1500 bytes, and of one that the host cuts.
pub const SHORT: usize = 1460;
pub const LONG: usize = 65_000;

/// A segment between a port of the guest and one of a far side.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub is_of_guest: bool,
    pub far: Ipv4Addr,
    /// Ports of the guest and of the far side.
    pub ports: (u16, u16),
    pub flags: u8,
    pub sequence: u32,
    pub acknowledged: u32,
}

impl Segment {
    /// The frame with a payload, and without a checksum of TCP: the host fills it in.
    pub fn frame(self, payload: &[u8]) -> Vec<u8> {
        let Self { is_of_guest, far, ports, flags, sequence, acknowledged } = self;
        let (macs, ips, ports) = match is_of_guest {
            true => ([ROUTER_MAC, GUEST_MAC], [GUEST, far], [ports.0, ports.1]),
            false => ([GUEST_MAC, ROUTER_MAC], [far, GUEST], [ports.1, ports.0]),
        };
        let len = (40 + payload.len()) as u16;
        let mut ip = [0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        ip[2..4].copy_from_slice(&len.to_be_bytes());
        ip[12..16].copy_from_slice(&ips[0].octets());
        ip[16..].copy_from_slice(&ips[1].octets());
        let sum: u32 = ip.as_chunks().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        let ports: Vec<u8> = ports.iter().flat_map(|port| port.to_be_bytes()).collect();
        let numbers = [sequence.to_be_bytes(), acknowledged.to_be_bytes()].concat();
        let rest = [0x50, flags, 0xff, 0xff, 0, 0, 0, 0];
        [&macs.concat()[..], &[8, 0], &ip, &ports, &numbers, &rest, payload].concat()
    }
}

/// A question for the address of a name (RFC 1035, section 4.1).
pub fn question(name: &str) -> Vec<u8> {
    let labels = name.split('.').flat_map(|label| [&[label.len() as u8][..], label.as_bytes()].concat());
    let head = [0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    head.into_iter().chain(labels).chain([0, 0, 1, 0, 1]).collect()
}
