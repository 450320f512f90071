//! Checksums of metadata (`ext4_chksum`).

use crate::crc32c;

/// A checksum of the bytes so far. Those of the UUID come first, then what names the structure's place, so
/// that a structure of another disk or place is found out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checksum(u32);

impl Checksum {
    pub(super) const NEW: Self = Self(crc32c::START);

    pub(super) fn with(self, bytes: &[u8]) -> Self {
        Self(crc32c::after(self.0, bytes))
    }

    /// Continues with what names an inode: its number, and its generation, which is 0.
    pub(super) fn with_inode(self, number: u32) -> Self {
        self.with(&number.to_le_bytes()).with(&[0; 4])
    }

    pub(super) fn value(self) -> u32 {
        self.0
    }

    /// Returns the lower half, where a structure has no room for more.
    pub(super) fn lower(self) -> u16 {
        self.0 as u16
    }
}
