//! Bitmaps of the blocks and inodes of a group.
//!
//! Linux derives most of them from the descriptor (`EXT4_BG_BLOCK_UNINIT`, `EXT4_BG_INODE_UNINIT`): those of
//! groups where no inode is in use, and no block but the group's own metadata.

use super::BLOCK;
use super::layout::Layout;

/// Returns the bitmap of blocks, unless Linux derives it.
pub(super) fn blocks(layout: &Layout, group: u32) -> Option<[u8; BLOCK]> {
    // The blocks beyond the end of the last group are in its bitmap.
    let is_last = group + 1 == layout.groups();
    let is_derived = !layout.begins_run(group) && !is_last && layout.used(group) == layout.copy(group);
    (!is_derived).then(|| encode(layout.used(group), layout.blocks_in(group)))
}

/// Returns the bitmap of inodes, unless Linux derives it.
pub(super) fn inodes(layout: &Layout, group: u32) -> Option<[u8; BLOCK]> {
    let used = layout.used_inodes(group);
    (used > 0).then(|| encode(used, layout.inodes_per_group()))
}

/// The first things are in use, and those from `end` on do not exist: their bits are set too.
fn encode(used: u32, end: u32) -> [u8; BLOCK] {
    let mut bitmap = [0; BLOCK];
    for (at, byte) in (0..).step_by(8).zip(&mut bitmap) {
        let below = |limit: u32| ((1u32 << limit.saturating_sub(at).min(8)) - 1) as u8;
        *byte = below(used) | !below(end);
    }
    bitmap
}

#[cfg(test)]
mod tests {
    use super::super::layout::GROUP;
    use super::*;

    #[test]
    fn bits_are_set_below_the_used_and_from_the_end_on() {
        for (used, end) in [(0, GROUP), (0, 0), (1, 9), (8, 16), (13, 14), (GROUP - 1, GROUP)] {
            let bitmap = encode(used, end);
            for bit in 0..GROUP {
                let is_set = bitmap[bit as usize / 8] >> (bit % 8) & 1 == 1;
                assert_eq!(is_set, bit < used || bit >= end, "{bit} of {used}, {end}");
            }
        }
    }
}
