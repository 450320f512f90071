//! Inodes (`struct ext4_inode`, of 256 bytes).

use std::ops::Range;

use super::checksum::Checksum;
use super::fields::Fields;
use super::{BLOCK, extent};

/// Bytes of an inode (`s_inode_size`).
pub(super) const SIZE: usize = 256;
/// Bytes of the fields behind the first 128 (`i_extra_isize`). Extended attributes follow them.
pub(super) const EXTRA: u16 = 32;
/// Numbers of inodes (`EXT4_ROOT_INO`, `EXT4_JOURNAL_INO`).
pub(super) const ROOT: u32 = 2;
pub(super) const JOURNAL: u32 = 8;
/// `EXT4_EXTENTS_FL`: `i_block` has extents.
const EXTENTS: u32 = 0x8_0000;
/// The latest time: 32 bits, of which half are before 1970, and two bits more.
pub(super) const LATEST: u64 = (1 << 34) - (1 << 31) - 1;

/// An inode of root, whose content is a run of blocks.
pub(super) struct Inode {
    pub(super) number: u32,
    /// Type and permissions (`st_mode`).
    pub(super) mode: u16,
    pub(super) links: u16,
    pub(super) blocks: Range<u64>,
}

impl Inode {
    pub(super) fn journal(blocks: Range<u64>) -> Self {
        Self { number: JOURNAL, mode: 0o10_0600, links: 1, blocks }
    }

    pub(super) fn encode(&self, made: u64, checksum: Checksum) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        let mut fields = Fields(&mut bytes);
        let size = (self.blocks.end - self.blocks.start) * BLOCK as u64;
        let (time, epoch) = times(made);
        fields.u16(0x00, self.mode);
        fields.u32_halves([0x04, 0x6c], size);
        fields.u16(0x1a, self.links);
        // i_blocks counts sectors.
        fields.u32(0x1c, (size / 512) as u32);
        fields.u32(0x20, EXTENTS);
        fields.bytes(0x28, &extent::encode(&self.blocks));
        fields.u16(0x80, EXTRA);
        // Access, change, modification and creation.
        for (at, extra) in [(0x08, 0x8c), (0x0c, 0x84), (0x10, 0x88), (0x90, 0x94)] {
            fields.u32(at, time);
            fields.u32(extra, epoch);
        }
        let sum = checksum.with_inode(self.number).with(fields.0).value();
        fields.u16_halves([0x7c, 0x82], sum);
        bytes
    }
}

/// Splits a time into its lower 32 bits, which have a sign, and the epochs that they lack
/// (`ext4_encode_extra_time`).
fn times(made: u64) -> (u32, u32) {
    let lower = made as u32;
    let epochs = (made as i64 - i64::from(lower as i32)) >> 32;
    (lower, epochs as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_beyond_2038_counts_epochs() {
        assert_eq!(times(1_700_000_000), (1_700_000_000, 0));
        assert_eq!(times((1 << 31) - 1), (0x7fff_ffff, 0));
        assert_eq!(times(1 << 31), (0x8000_0000, 1));
        assert_eq!(times((1 << 32) + 5), (5, 1));
        assert_eq!(times(LATEST), (0x7fff_ffff, 3));
    }
}
