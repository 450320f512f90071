//! Where the metadata lie.
//!
//! Blocks form groups of 128 MiB, each with two bitmaps and an inode table. Those of neighbouring groups lie
//! together at the beginning of the first of these (`flex_bg`), so the used blocks of a group come first.

use std::ops::Range;

use super::{BLOCK, inode};

/// Blocks of a group: as many as a block has bits.
pub(super) const GROUP: u32 = 8 * BLOCK as u32;
/// Bytes of a group's descriptor (`s_desc_size`).
pub(super) const DESCRIPTOR: usize = 64;
/// Bytes of the disk for each inode; fewer on small disks, whose files are small.
const BYTES_PER_INODE: u64 = 16 << 10;
const LEAST_BYTES_PER_INODE: u64 = 4 << 10;
/// Small disks have at most so many inodes, and large ones. The second bounds the work of a check.
const INODES_OF_SMALL: u64 = 1 << 15;
const MOST_INODES: u64 = 1 << 28;
/// Groups whose bitmaps and tables lie together, at least, and how many such runs a disk has at most.
const LEAST_GROUPS_PER_RUN: u32 = 16;
const MOST_RUNS: u32 = 2048;
/// A disk of more groups has one copy of its superblock. Those of 1 TiB take 10 MiB, of 16 TiB 200 MiB.
const MOST_GROUPS_WITH_COPIES: u32 = 8192;
/// Blocks for content that a last group has at least.
const LEAST_CONTENT: u32 = 50;
/// The group that holds nothing but a journal of the group's size. It begins with no copy and no tables.
const JOURNAL_GROUP: u32 = 2;
/// The first inode that is neither reserved nor the root: `lost+found` has it (`s_first_ino`).
pub(super) const FIRST_INODE: u32 = 11;
/// Inodes of the table of group 0 that are reserved (`EXT4_ROOT_INO` is among them).
const RESERVED_INODES: u32 = FIRST_INODE - 1;

#[derive(Clone, Debug)]
pub(super) struct Layout {
    blocks: u64,
    groups: u32,
    inodes_per_group: u32,
    groups_per_run: u32,
    directories: u32,
}

impl Layout {
    /// Lays out a disk with some directories, the root among them.
    pub(super) fn new(size: u64, directories: u32) -> Self {
        let whole = Self::of_blocks(size / BLOCK as u64, directories);
        let last = whole.groups - 1;
        let is_too_small = whole.blocks_in(last) < whole.used(last) + LEAST_CONTENT;
        if is_too_small { Self::of_blocks(whole.start(last), directories) } else { whole }
    }

    fn of_blocks(blocks: u64, directories: u32) -> Self {
        let groups = blocks.div_ceil(u64::from(GROUP)) as u32;
        let size = blocks * BLOCK as u64;
        let of_small = (size / LEAST_BYTES_PER_INODE).min(INODES_OF_SMALL);
        let inodes = (size / BYTES_PER_INODE).max(of_small).min(MOST_INODES);
        let per_block = (BLOCK / inode::SIZE) as u64;
        Self {
            blocks,
            groups,
            inodes_per_group: inodes.div_ceil(u64::from(groups)).next_multiple_of(per_block) as u32,
            groups_per_run: LEAST_GROUPS_PER_RUN.max(groups.next_power_of_two() / MOST_RUNS),
            directories,
        }
    }

    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(super) fn groups(&self) -> u32 {
        self.groups
    }

    pub(super) fn inodes_per_group(&self) -> u32 {
        self.inodes_per_group
    }

    /// Groups whose bitmaps and tables lie together: a power of two.
    pub(super) fn groups_per_run(&self) -> u32 {
        self.groups_per_run
    }

    /// The first block of a group.
    pub(super) fn start(&self, group: u32) -> u64 {
        u64::from(group) * u64::from(GROUP)
    }

    /// Blocks of a group: the last one may have fewer than others.
    pub(super) fn blocks_in(&self, group: u32) -> u32 {
        (self.blocks - self.start(group)).min(u64::from(GROUP)) as u32
    }

    /// Tells whether the disk has one copy of its superblock alone, in group 1 (`sparse_super2`). Linux does
    /// not enlarge such a disk while it is mounted.
    pub(super) fn has_one_copy(&self) -> bool {
        self.groups > MOST_GROUPS_WITH_COPIES
    }

    /// Tells whether a group begins with the superblock and the descriptors of all groups.
    pub(super) fn has_copy(&self, group: u32) -> bool {
        let is_power = |base: u32| group == base.pow(group.checked_ilog(base).unwrap_or(0));
        group <= 1 || (!self.has_one_copy() && [3, 5, 7].into_iter().any(is_power))
    }

    /// Blocks of the superblock and the descriptors at the beginning of a group.
    pub(super) fn copy(&self, group: u32) -> u32 {
        let descriptors = self.groups.div_ceil((BLOCK / DESCRIPTOR) as u32);
        if self.has_copy(group) { 1 + descriptors } else { 0 }
    }

    /// Blocks of an inode table.
    pub(super) fn table(&self) -> u32 {
        self.inodes_per_group / (BLOCK / inode::SIZE) as u32
    }

    /// The first group of the run that a group is in, the group's position there, and the run's length.
    fn run(&self, group: u32) -> (u32, u32, u32) {
        let first = group / self.groups_per_run * self.groups_per_run;
        (first, group - first, self.groups_per_run.min(self.groups - first))
    }

    /// Tells whether a group holds the bitmaps and tables of its run.
    pub(super) fn begins_run(&self, group: u32) -> bool {
        group.is_multiple_of(self.groups_per_run)
    }

    pub(super) fn block_bitmap(&self, group: u32) -> u64 {
        let (first, position, _) = self.run(group);
        self.start(first) + u64::from(self.copy(first) + position)
    }

    pub(super) fn inode_bitmap(&self, group: u32) -> u64 {
        let (_, _, len) = self.run(group);
        self.block_bitmap(group) + u64::from(len)
    }

    pub(super) fn inode_table(&self, group: u32) -> u64 {
        let (first, position, len) = self.run(group);
        self.start(first) + u64::from(self.copy(first) + 2 * len + position * self.table())
    }

    /// The block of a directory. The root is the first of them.
    pub(super) fn directory(&self, ordinal: u32) -> u64 {
        u64::from(self.metadata(0) + ordinal)
    }

    /// The blocks of the journal. It lies in one group, so one extent describes it.
    pub(super) fn journal(&self) -> Range<u64> {
        let len = super::journal::blocks(self.blocks);
        let start = if len == GROUP { self.start(JOURNAL_GROUP) } else { self.directory(self.directories) };
        start..start + u64::from(len)
    }

    /// Blocks at the beginning of a group that no file has.
    fn metadata(&self, group: u32) -> u32 {
        let (_, _, len) = self.run(group);
        self.copy(group) + if self.begins_run(group) { len * (2 + self.table()) } else { 0 }
    }

    /// Blocks at the beginning of a group that are in use. All others are free.
    pub(super) fn used(&self, group: u32) -> u32 {
        let journal = self.journal();
        let directories = if group == 0 { self.directories } else { 0 };
        let holds_journal = journal.start / u64::from(GROUP) == u64::from(group);
        let of_journal = if holds_journal { journal.end - journal.start } else { 0 };
        self.metadata(group) + directories + of_journal as u32
    }

    /// Inodes at the beginning of a group's table that are in use, or reserved.
    pub(super) fn used_inodes(&self, group: u32) -> u32 {
        // Number 2 is the root's.
        if group == 0 { RESERVED_INODES + self.directories - 1 } else { 0 }
    }

    /// Directories whose inodes are in a group's table.
    pub(super) fn directories_in(&self, group: u32) -> u32 {
        if group == 0 { self.directories } else { 0 }
    }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
