//! The header of every packet between guest and host (virtio 1.2, section 5.10.6).

/// Bytes of a header.
pub(super) const LEN: usize = 44;
/// CID of the host.
pub(super) const HOST_CID: u64 = 2;
/// The only socket type that is served.
pub(super) const STREAM: u16 = 1;

/// Operations of packets (`VIRTIO_VSOCK_OP_*`).
pub(super) mod op {
    pub const REQUEST: u16 = 1;
    pub const RESPONSE: u16 = 2;
    pub const RST: u16 = 3;
    pub const SHUTDOWN: u16 = 4;
    pub const RW: u16 = 5;
    pub const CREDIT_UPDATE: u16 = 6;
    pub const CREDIT_REQUEST: u16 = 7;
}

/// Flags of a SHUTDOWN: directions that the sender has shut down.
pub(super) mod shut {
    pub const RECEIVE: u32 = 1;
    pub const SEND: u32 = 2;
    pub const BOTH: u32 = RECEIVE | SEND;
}

/// A packet's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PacketHeader {
    pub src_cid: u64,
    pub dst_cid: u64,
    pub src_port: u32,
    pub dst_port: u32,
    /// Bytes of payload.
    pub len: u32,
    pub socket_type: u16,
    pub op: u16,
    pub flags: u32,
    /// The sender's buffer, and the bytes that it has forwarded in all.
    pub buf_alloc: u32,
    pub fwd_cnt: u32,
}

impl PacketHeader {
    pub fn parse(bytes: &[u8; LEN]) -> Self {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        Self {
            src_cid: u64_at(0),
            dst_cid: u64_at(8),
            src_port: u32_at(16),
            dst_port: u32_at(20),
            len: u32_at(24),
            socket_type: u16_at(28),
            op: u16_at(30),
            flags: u32_at(32),
            buf_alloc: u32_at(36),
            fwd_cnt: u32_at(40),
        }
    }

    pub fn bytes(&self) -> [u8; LEN] {
        let Self { src_cid, dst_cid, src_port, dst_port, len, socket_type, op, flags, buf_alloc, fwd_cnt } =
            self;
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&src_cid.to_le_bytes());
        bytes[8..16].copy_from_slice(&dst_cid.to_le_bytes());
        for (at, word) in
            [(16, src_port), (20, dst_port), (24, len), (32, flags), (36, buf_alloc), (40, fwd_cnt)]
        {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[28..30].copy_from_slice(&socket_type.to_le_bytes());
        bytes[30..32].copy_from_slice(&op.to_le_bytes());
        bytes
    }

    /// Returns the RST that tells the sender of this packet that there is no such connection.
    pub fn refusal(&self) -> Self {
        Self {
            src_cid: self.dst_cid,
            dst_cid: self.src_cid,
            src_port: self.dst_port,
            dst_port: self.src_port,
            socket_type: self.socket_type,
            op: op::RST,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_has_the_layout_of_the_specification() {
        let mut bytes = [0; LEN];
        bytes.iter_mut().zip(1..).for_each(|(byte, value)| *byte = value);
        let header = PacketHeader::parse(&bytes);
        assert_eq!((header.src_cid, header.dst_cid), (0x0807_0605_0403_0201, 0x100f_0e0d_0c0b_0a09));
        assert_eq!((header.src_port, header.dst_port, header.len), (0x1413_1211, 0x1817_1615, 0x1c1b_1a19));
        assert_eq!((header.socket_type, header.op), (0x1e1d, 0x201f));
        assert_eq!((header.flags, header.buf_alloc, header.fwd_cnt), (0x2423_2221, 0x2827_2625, 0x2c2b_2a29));
        assert_eq!(header.bytes(), bytes);
    }
}
