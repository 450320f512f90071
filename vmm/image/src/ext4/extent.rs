//! The extent of a file whose blocks are one run (`struct ext4_extent_header` and `struct ext4_extent`).

use std::ops::Range;

use super::fields::Fields;

/// Bytes of `i_block`, where an inode has its first extents.
pub(super) const ROOT: usize = 60;
const MAGIC: u16 = 0xf30a;
/// Extents that `i_block` has room for.
const ROOM: u16 = 4;

/// Encodes `i_block`. The run has at most 32768 blocks.
pub(super) fn encode(blocks: &Range<u64>) -> [u8; ROOT] {
    let mut bytes = [0; ROOT];
    let mut fields = Fields(&mut bytes);
    fields.u16(0x00, MAGIC);
    fields.u16(0x02, 1);
    fields.u16(0x04, ROOM);
    // The extent, behind 12 bytes of the header: its first block in the file is 0.
    fields.u16(0x10, u16::try_from(blocks.end - blocks.start).expect("at most a group"));
    fields.u16(0x12, (blocks.start >> 32) as u16);
    fields.u32(0x14, blocks.start as u32);
    bytes
}
