//! The superblock of an empty journal (`struct journal_superblock_s` of JBD2). Its numbers are big-endian.

use std::ops::Range;

use super::BLOCK;
use super::checksum::Checksum;

/// Bytes of the superblock. The rest of its block is zero.
const SIZE: usize = 1024;
const MAGIC: u32 = 0xc03b_3998;
/// `JBD2_SUPERBLOCK_V2`.
const SUPERBLOCK: u32 = 4;
/// `JBD2_FEATURE_INCOMPAT_64BIT` and `_CSUM_V3`, which Linux would set at the first mount.
const INCOMPATIBLE: u32 = 2 | 0x10;
/// `JBD2_CRC32C_CHKSUM`.
const CRC32C: u8 = 4;
/// Blocks of the journal by those of the disk, as mke2fs has them up to 16 GiB. The first number is the least
/// that Linux takes. Larger journals would not fit a group, and their blocks stay allocated on the host.
const BLOCKS: [(u64, u32); 4] = [(1 << 15, 1024), (1 << 18, 4096), (1 << 19, 8192), (1 << 22, 16384)];
const MOST_BLOCKS: u32 = 32768;

/// Returns the length of the journal on a disk of some blocks.
pub(super) fn blocks(disk: u64) -> u32 {
    BLOCKS.iter().find(|(below, _)| disk < *below).map_or(MOST_BLOCKS, |(_, blocks)| *blocks)
}

/// Encodes the first block of a journal.
pub(super) fn encode(blocks: &Range<u64>, identity: &[u8; 16]) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    let len = u32::try_from(blocks.end - blocks.start).expect("at most MOST_BLOCKS");
    // Without s_start the journal is empty.
    let numbers = [
        (0x00, MAGIC),
        (0x04, SUPERBLOCK),
        (0x0c, BLOCK as u32),
        (0x10, len),
        // s_first, s_sequence and s_nr_users.
        (0x14, 1),
        (0x18, 1),
        (0x40, 1),
        (0x28, INCOMPATIBLE),
    ];
    numbers.into_iter().for_each(|(at, number)| put(at, &number.to_be_bytes()));
    put(0x30, identity);
    put(0x50, &[CRC32C]);
    let sum = Checksum::NEW.with(&block[..SIZE]).value();
    block[0xfc..0x100].copy_from_slice(&sum.to_be_bytes());
    block
}
