//! The superblock (`struct ext4_super_block`).

use super::checksum::Checksum;
use super::fields::Fields;
use super::layout::{DESCRIPTOR, FIRST_INODE, GROUP, Layout};
use super::{BLOCK, Description, extent, inode};

/// Where it lies in the first block. Copies begin their block.
pub(super) const OFFSET: u64 = 1024;
const SIZE: usize = 1024;
const MAGIC: u16 = 0xef53;
/// Features that a system may ignore (`EXT4_FEATURE_COMPAT_`): journal, extended attributes, indexes of
/// directories.
const COMPATIBLE: u32 = 0x4 | 0x8 | 0x20;
const SPARSE_SUPER2: u32 = 0x200;
/// Features that a system must know (`EXT4_FEATURE_INCOMPAT_`): file types in directories, extents, 64-bit
/// numbers of blocks, metadata of groups together.
const INCOMPATIBLE: u32 = 0x2 | 0x40 | 0x80 | 0x200;
/// Features that a system must know to write (`EXT4_FEATURE_RO_COMPAT_`): few copies, large files, huge
/// files, directories of many directories, long inodes, checksums.
const READ_ONLY_COMPATIBLE: u32 = 0x1 | 0x2 | 0x8 | 0x20 | 0x40 | 0x400;
/// `EXT4_VALID_FS`: the disk was unmounted.
const CLEAN: u16 = 1;
/// `EXT4_ERRORS_RO`.
const READ_ONLY_AFTER_ERRORS: u16 = 2;
/// `EXT4_DYNAMIC_REV`.
const REVISION: u32 = 1;
/// No number of mounts asks for a check.
const NO_MOST_MOUNTS: u16 = u16::MAX;
/// `EXT4_DEFM_XATTR_USER` and `EXT4_DEFM_ACL`.
const MOUNT_OPTIONS: u32 = 0x4 | 0x8;
/// `DX_HASH_HALF_MD4`, of signed bytes on every processor (`EXT2_FLAGS_SIGNED_HASH`).
const HALF_MD4: u8 = 1;
const SIGNED_HASH: u32 = 1;
/// `EXT4_CRC32C_CHKSUM`.
const CRC32C: u8 = 1;

/// Encodes the superblock in a group.
pub(super) fn encode(description: &Description, layout: &Layout, group: u32) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    let mut fields = Fields(&mut bytes);
    geometry(&mut fields, layout, group);
    identity(&mut fields, description);
    let few_copies = if layout.has_one_copy() { SPARSE_SUPER2 } else { 0 };
    fields.u32(0x5c, COMPATIBLE | few_copies);
    fields.u32(0x60, INCOMPATIBLE);
    fields.u32(0x64, READ_ONLY_COMPATIBLE);
    if layout.has_one_copy() {
        // s_backup_bgs.
        fields.u32(0x24c, 1);
    }
    journal(&mut fields, layout);
    let sum = Checksum::NEW.with(&fields.0[..SIZE - 4]).value();
    fields.u32(SIZE - 4, sum);
    bytes
}

/// Sets what tells the places and the counts of all else.
fn geometry(fields: &mut Fields, layout: &Layout, group: u32) {
    let groups = 0..layout.groups();
    let sum = |count: &dyn Fn(u32) -> u32| groups.clone().map(|group| u64::from(count(group))).sum::<u64>();
    let inodes = layout.groups() * layout.inodes_per_group();
    let journal = layout.journal();
    let overhead = sum(&|group| layout.copy(group) + 2 + layout.table()) + journal.end - journal.start;
    let log_block = BLOCK.ilog2() - 10;
    fields.u32(0x00, inodes);
    fields.u32_halves([0x04, 0x150], layout.blocks());
    fields.u32_halves([0x0c, 0x158], layout.blocks() - sum(&|group| layout.used(group)));
    fields.u32(0x10, inodes - layout.used_inodes(0));
    // Blocks, and clusters of one block.
    fields.u32(0x18, log_block);
    fields.u32(0x1c, log_block);
    fields.u32(0x20, GROUP);
    fields.u32(0x24, GROUP);
    fields.u32(0x28, layout.inodes_per_group());
    fields.u32(0x54, FIRST_INODE);
    fields.u16(0x58, inode::SIZE as u16);
    fields.u16(0x5a, group as u16);
    fields.u16(0xfe, DESCRIPTOR as u16);
    // s_min_extra_isize and s_want_extra_isize.
    fields.u16(0x15c, inode::EXTRA);
    fields.u16(0x15e, inode::EXTRA);
    fields.bytes(0x174, &[layout.groups_per_run().ilog2() as u8, CRC32C]);
    // s_overhead_clusters, which spares Linux the sum.
    fields.u32(0x248, overhead as u32);
}

/// Sets what tells this file system from others, its times and its conduct.
fn identity(fields: &mut Fields, description: &Description) {
    // s_wtime, s_lastcheck and s_mkfs_time, each with 8 bits more elsewhere.
    for (low, high) in [(0x30, 0x274), (0x40, 0x277), (0x108, 0x276)] {
        fields.u32(low, description.made as u32);
        fields.bytes(high, &[(description.made >> 32) as u8]);
    }
    fields.u16(0x36, NO_MOST_MOUNTS);
    fields.u16(0x38, MAGIC);
    fields.u16(0x3a, CLEAN);
    fields.u16(0x3c, READ_ONLY_AFTER_ERRORS);
    fields.u32(0x4c, REVISION);
    fields.bytes(0x68, &description.identity);
    fields.bytes(0xec, &description.hash_seed);
    fields.bytes(0xfc, &[HALF_MD4]);
    fields.u32(0x100, MOUNT_OPTIONS);
    fields.u32(0x160, SIGNED_HASH);
}

/// Sets the number of the journal's inode, and a copy of where the journal lies.
fn journal(fields: &mut Fields, layout: &Layout) {
    let blocks = layout.journal();
    let size = (blocks.end - blocks.start) * BLOCK as u64;
    fields.u32(0xe0, inode::JOURNAL);
    // s_jnl_backup_type and s_jnl_blocks: i_block, then the size.
    fields.bytes(0xfd, &[1]);
    fields.bytes(0x10c, &extent::encode(&blocks));
    fields.u32_halves([0x10c + extent::ROOT + 4, 0x10c + extent::ROOT], size);
}
