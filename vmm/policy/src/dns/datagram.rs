//! A question in a datagram of UDP, and the datagram that answers it.

use crate::frame::{Content, Frame, Packet, Transport};
use crate::reply;

/// The sender of a question in a datagram.
#[derive(Clone, Debug)]
pub struct Datagram {
    frame: Frame,
    packet: Packet,
}

impl Datagram {
    /// Reads a frame of UDP. Returns the content of its datagram, too.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let frame = Frame::parse(bytes, bytes.len()).ok()?;
        let Content::Packet(packet) = frame.content else { return None };
        let Transport::Udp { .. } = packet.transport else { return None };
        let content = bytes.get(packet.payload.0..packet.payload.1)?;
        Some((Self { frame, packet }, content))
    }

    /// The frame that brings an answer.
    #[must_use]
    pub fn answer(&self, message: &[u8]) -> Option<Vec<u8>> {
        reply::datagram(&self.frame, &self.packet, message)
    }
}
