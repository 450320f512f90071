//! The superblock (`struct erofs_super_block`).

use super::{BLOCK, Damage};
use crate::crc32c;

/// Where it lies in the first block.
const OFFSET: usize = 1024;
const MAGIC: u32 = 0xe0f5_e1e2;
/// `EROFS_FEATURE_COMPAT_SB_CHKSUM` and `_MTIME`: times are those of the last change of the content.
const COMPATIBLE: u32 = 1 | 2;

#[derive(Debug)]
pub(super) struct Superblock {
    /// The root's number.
    pub(super) root: u64,
    pub(super) inodes: u64,
    /// Blocks of the whole disk.
    pub(super) blocks: u32,
    /// The first block of inodes.
    pub(super) metadata: u32,
    pub(super) identity: [u8; 16],
}

/// Decodes the first block of a disk that this module wrote.
pub(super) fn decode(block: &[u8; BLOCK]) -> Result<Superblock, Damage> {
    let bytes = &block[OFFSET..];
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    if word(0) != MAGIC {
        return Err(Damage("it is no EROFS file system"));
    }
    let mut whole = bytes.to_vec();
    whole[4..8].fill(0);
    if crc32c::after(crc32c::START, &whole) != word(4) {
        return Err(Damage("the checksum of its superblock is wrong"));
    }
    if word(8) != COMPATIBLE || usize::from(bytes[12]) != BLOCK.trailing_zeros() as usize || word(80) != 0 {
        return Err(Damage("it has features that volt-vmm does not write"));
    }
    Ok(Superblock {
        root: u64::from(word(12) >> 16),
        inodes: u64::from(word(16)) | u64::from(word(20)) << 32,
        blocks: word(36),
        metadata: word(40),
        identity: bytes[48..64].try_into().expect("16 bytes"),
    })
}

/// Encodes the first block of the disk.
pub(super) fn encode(superblock: &Superblock) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put =
        |at: usize, bytes: &[u8]| block[OFFSET + at..OFFSET + at + bytes.len()].copy_from_slice(bytes);
    put(0, &MAGIC.to_le_bytes());
    put(8, &COMPATIBLE.to_le_bytes());
    put(12, &[BLOCK.trailing_zeros() as u8]);
    put(14, &u16::try_from(superblock.root).expect("the root is the first inode").to_le_bytes());
    put(16, &superblock.inodes.to_le_bytes());
    put(36, &superblock.blocks.to_le_bytes());
    put(40, &superblock.metadata.to_le_bytes());
    put(48, &superblock.identity);
    let checksum = crc32c::after(crc32c::START, &block[OFFSET..]);
    block[OFFSET + 4..OFFSET + 8].copy_from_slice(&checksum.to_le_bytes());
    block
}
