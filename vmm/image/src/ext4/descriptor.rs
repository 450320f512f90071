//! Descriptors of groups (`struct ext4_group_desc`, of 64 bytes).

use super::checksum::Checksum;
use super::fields::Fields;
use super::layout::{DESCRIPTOR, Layout};

/// Linux derives the bitmap of inodes, or of blocks; the inode table is zeroed (`EXT4_BG_`). Without the last
/// one Linux would write the tables after a mount.
const INODE_UNINIT: u16 = 1;
const BLOCK_UNINIT: u16 = 2;
const INODE_ZEROED: u16 = 4;

/// Checksums of the bitmaps that are written.
pub(super) struct Sums {
    pub(super) blocks: Option<u32>,
    pub(super) inodes: Option<u32>,
}

pub(super) fn encode(layout: &Layout, group: u32, sums: &Sums, checksum: Checksum) -> [u8; DESCRIPTOR] {
    let mut bytes = [0; DESCRIPTOR];
    let mut fields = Fields(&mut bytes);
    let free_inodes = layout.inodes_per_group() - layout.used_inodes(group);
    let derived_blocks = if sums.blocks.is_none() { BLOCK_UNINIT } else { 0 };
    let derived_inodes = if sums.inodes.is_none() { INODE_UNINIT } else { 0 };
    fields.u32_halves([0x00, 0x20], layout.block_bitmap(group));
    fields.u32_halves([0x04, 0x24], layout.inode_bitmap(group));
    fields.u32_halves([0x08, 0x28], layout.inode_table(group));
    fields.u16_halves([0x0c, 0x2c], layout.blocks_in(group) - layout.used(group));
    fields.u16_halves([0x0e, 0x2e], free_inodes);
    fields.u16_halves([0x10, 0x30], layout.directories_in(group));
    fields.u16(0x12, INODE_ZEROED | derived_blocks | derived_inodes);
    fields.u16_halves([0x18, 0x38], sums.blocks.unwrap_or(0));
    fields.u16_halves([0x1a, 0x3a], sums.inodes.unwrap_or(0));
    // bg_itable_unused: the inodes in use come first.
    fields.u16_halves([0x1c, 0x32], free_inodes);
    let sum = checksum.with(&group.to_le_bytes()).with(fields.0).lower();
    fields.u16(0x1e, sum);
    bytes
}
