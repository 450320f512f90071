//! Work that a guest leaves to the host: the checksum of a packet, and cutting it into segments (virtio
//! 1.2, section 5.1.6.2). The host writes where the guest says, after the verdict. It may be the checksum
//! of TCP or UDP alone: anywhere else, the write would change an address or a port.

use std::net::IpAddr;

use crate::frame::{Packet, Transport};

/// Offsets of the checksum in the headers of TCP and UDP.
const OF_TCP: u16 = 16;
const OF_UDP: u16 = 6;

/// The work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Where the checksum begins in the frame, and where it is written, from there on.
    pub checksum: Option<(u16, u16)>,
    /// The version of IP whose segments of TCP the frame is cut into.
    pub segments: Option<Version>,
}

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Offload {
    /// Whether a frame other than one of TCP and UDP may have this.
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether this is the packet's own checksum, and its own version, in a frame of `len` bytes. The host
    /// cuts by the length of the frame, and may make a payload of bytes behind the packet.
    pub(crate) fn fits(&self, packet: &Packet, len: usize) -> bool {
        if !self.is_none() && packet.payload.1 != len {
            return false;
        }
        let own = match packet.transport {
            Transport::Tcp(_) => OF_TCP,
            Transport::Udp { .. } => OF_UDP,
            Transport::Icmp { .. } | Transport::Other(_) => return self.is_none(),
        };
        let is_own = |(start, offset): (u16, u16)| usize::from(start) == packet.transport_at && offset == own;
        let version = match packet.target {
            IpAddr::V4(_) => Version::V4,
            IpAddr::V6(_) => Version::V6,
        };
        let is_tcp = matches!(packet.transport, Transport::Tcp(_));
        self.checksum.is_none_or(is_own) && self.segments.is_none_or(|own| is_tcp && own == version)
    }
}
