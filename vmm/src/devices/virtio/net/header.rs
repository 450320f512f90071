//! The header in front of each frame (virtio 1.2, section 5.1.6), which leaves work on the frame to the
//! other side. A header passes only as far as the two sides agreed.

use volt_policy::{Offload, Version};

use super::feature;

/// Bytes of the header.
pub(super) const LEN: usize = 12;

/// `flags`: the checksum has to be filled in; it has been verified.
const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
/// `gso_type`: TCP over IPv4 and IPv6.
const TCPV4: u8 = 1;
const TCPV6: u8 = 4;

/// `struct virtio_net_hdr_v1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    flags: u8,
    gso_type: u8,
    hdr_len: u16,
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
    pub num_buffers: u16,
}

impl Header {
    pub fn from_bytes(bytes: [u8; LEN]) -> Self {
        let word = |at| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
            num_buffers: word(10),
        }
    }

    pub fn to_bytes(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        (bytes[0], bytes[1]) = (self.flags, self.gso_type);
        let words = [self.hdr_len, self.gso_size, self.csum_start, self.csum_offset, self.num_buffers];
        for (to, word) in bytes[2..].chunks_exact_mut(2).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Returns the header for the backend of a frame of `len` bytes from the guest. Returns `None` if the
    /// guest asks for an offload that was not negotiated or is impossible.
    pub fn for_host(self, features: u64, len: usize) -> Option<Self> {
        let (tso4, tso6) = (features & feature::HOST_TSO4 != 0, features & feature::HOST_TSO6 != 0);
        let mut passed = self.checked(features & feature::CSUM != 0, tso4, tso6, len)?;
        passed.flags &= NEEDS_CSUM;
        Some(passed)
    }

    /// The work that the header leaves to the other side.
    pub fn offload(self) -> Offload {
        let checksum = (self.flags & NEEDS_CSUM != 0).then_some((self.csum_start, self.csum_offset));
        let segments = match self.gso_type {
            TCPV4 => Some(Version::V4),
            TCPV6 => Some(Version::V6),
            _ => None,
        };
        Offload { checksum, segments }
    }

    /// Whether the host vouches for the frame's checksum: it has verified it, or left it out.
    pub fn is_checked(self) -> bool {
        self.flags & (NEEDS_CSUM | DATA_VALID) != 0
    }

    /// Returns the header for the guest of a frame of `len` bytes from the backend. Returns `None` if the
    /// guest cannot use the frame, because it arrived before the driver last changed its features.
    pub fn for_guest(self, features: u64, len: usize) -> Option<Self> {
        let (tso4, tso6) = (features & feature::GUEST_TSO4 != 0, features & feature::GUEST_TSO6 != 0);
        let checksums = features & feature::GUEST_CSUM != 0;
        let mut passed = self.checked(checksums, tso4, tso6, len)?;
        passed.flags &= if checksums { NEEDS_CSUM | DATA_VALID } else { 0 };
        Some(passed)
    }

    fn checked(self, checksums: bool, tso4: bool, tso6: bool, len: usize) -> Option<Self> {
        let mut passed = Self { flags: self.flags, ..Self::default() };
        if self.flags & NEEDS_CSUM != 0 {
            let end = usize::from(self.csum_start) + usize::from(self.csum_offset) + 2;
            if !checksums || end > len {
                return None;
            }
            (passed.csum_start, passed.csum_offset) = (self.csum_start, self.csum_offset);
        }
        let agreed = match self.gso_type {
            0 => return Some(passed),
            TCPV4 => tso4,
            TCPV6 => tso6,
            _ => false,
        };
        let possible = self.flags & NEEDS_CSUM != 0 && self.gso_size != 0 && usize::from(self.hdr_len) <= len;
        (passed.gso_type, passed.gso_size, passed.hdr_len) = (self.gso_type, self.gso_size, self.hdr_len);
        (agreed && possible).then_some(passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = feature::OFFLOAD;

    fn segments(gso_type: u8) -> Header {
        let bytes = [NEEDS_CSUM, gso_type, 54, 0, 0xb4, 5, 34, 0, 16, 0, 9, 0];
        let header = Header::from_bytes(bytes);
        assert_eq!(header.to_bytes(), bytes);
        header
    }

    #[test]
    fn negotiated_offloads_pass() {
        for (gso_type, feature) in [(TCPV4, feature::HOST_TSO4), (TCPV6, feature::HOST_TSO6)] {
            let header = segments(gso_type);
            let passed = Header { num_buffers: 0, ..header };
            assert_eq!(header.for_host(feature::CSUM | feature, 4000), Some(passed));
            assert_eq!(header.for_host(ALL & !feature, 4000), None);
            assert_eq!(header.for_guest(ALL, 4000), Some(passed));
        }
        assert_eq!(segments(0).for_guest(feature::CSUM, 4000), None);
    }

    #[test]
    fn impossible_offloads_are_refused() {
        let header = segments(TCPV4);
        assert_eq!(header.for_host(ALL, 51), None, "the checksum lies behind the end");
        assert_eq!(header.for_host(ALL, 53), None, "the headers end behind the end");
        assert_eq!(Header { gso_size: 0, ..header }.for_host(ALL, 4000), None);
        assert_eq!(Header { flags: 0, ..header }.for_host(ALL, 4000), None);
        for gso_type in [2, 3, 5, TCPV4 | 0x80, 0xff] {
            assert_eq!(segments(gso_type).for_host(ALL, 4000), None);
        }
    }

    #[test]
    fn unused_fields_are_cleared() {
        let odd = Header::from_bytes([0xfe, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(odd.for_host(ALL, 60), Some(Header::default()));
        assert_eq!(odd.for_guest(0, 60), Some(Header::default()));
        assert_eq!(odd.for_guest(ALL, 60), Some(Header { flags: DATA_VALID, ..Header::default() }));
    }
}
