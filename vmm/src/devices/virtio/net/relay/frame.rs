//! Frames with a segment of TCP: who sends them to whom, and the packet in them.

use std::net::IpAddr;

use volt_policy::{Content, Flags, Frame, Mac, Transport};

use super::end::Endpoint;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Types of Ethernet.
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];

/// A segment in a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpFrame<'a> {
    /// Hardware addresses of the sender and the receiver.
    pub macs: (Mac, Mac),
    pub source: Endpoint,
    pub target: Endpoint,
    pub flags: Flags,
    /// The packet of IP, without padding.
    pub packet: &'a [u8],
}

impl<'a> TcpFrame<'a> {
    /// Reads a frame. Returns `None` if it is malformed or has no segment of TCP.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let frame = Frame::parse(bytes, bytes.len()).ok()?;
        let Content::Packet(packet) = frame.content else { return None };
        let Transport::Tcp(segment) = packet.transport else { return None };
        Some(Self {
            macs: (frame.source, frame.target),
            source: (packet.source, segment.source),
            target: (packet.target, segment.target),
            flags: segment.flags,
            packet: bytes.get(ETHERNET..packet.payload.1)?,
        })
    }

    /// Whether it asks for a connection.
    pub fn opens(&self) -> bool {
        self.flags == Flags { syn: true, ..Flags::default() }
    }
}

/// A frame from one hardware address to another, with a packet of this address's version of IP.
pub(crate) fn frame_of(packet: &[u8], (source, target): (Mac, Mac), address: IpAddr) -> Vec<u8> {
    let kind = if address.is_ipv4() { IPV4 } else { IPV6 };
    [&target[..], &source, &kind, packet].concat()
}
