//! Where inodes and their content lie.
//!
//! Inodes come in the order of a walk, so that those of a directory are neighbours. Content that fits lies
//! behind its inode, within the block in which the attributes end. Other content has blocks behind all
//! inodes.

use std::collections::VecDeque;

use super::{BLOCK, LONGEST_TARGET, Refusal, attributes, device, entries};
use crate::name::is_name;
use crate::tree::{InodeId, Kind, Tree};

/// Bytes of an inode without attributes and content.
pub(super) const INODE: usize = 64;
/// Inodes begin at multiples of this, by which they are numbered.
pub(super) const SLOT: usize = 32;
/// The first inode's offset: programs take a file of number 0 for none.
const FIRST: usize = 64;

#[derive(Debug)]
pub(super) struct Layout {
    /// The inodes that have a name, and the root.
    order: Vec<InodeId>,
    spots: Vec<Spot>,
    blocks: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Spot {
    /// Offset in the area.
    place: usize,
    /// Bytes of the content that belongs to the metadata.
    len: usize,
    /// The first block on the disk of content that does not lie behind the inode.
    data: Option<u32>,
    links: u32,
    /// Position in the order.
    ordinal: u32,
    parent: usize,
}

impl Layout {
    /// Lays out the files that the root leads to, in an area from the block `first` on.
    pub(super) fn new(tree: &Tree, first: u32) -> Result<Self, Refusal> {
        let mut layout = Self { order: Vec::new(), spots: vec![Spot::default(); tree.len()], blocks: 0 };
        layout.walk(tree)?;
        let (mut at, mut later) = (FIRST, Vec::new());
        for ordinal in 0..layout.order.len() {
            let id = layout.order[ordinal];
            let node = tree.inode(id);
            if let Kind::BlockDevice(number) | Kind::CharacterDevice(number) = node.kind {
                device::encoded(number).map_err(Refusal::of_file(tree, id))?;
            }
            let attributes = attributes::encode(&node.attributes).map_err(Refusal::of_file(tree, id))?;
            let head = INODE + attributes.len();
            let len = layout.content_len(tree, id);
            let is_inline = head + len <= BLOCK;
            at = place(at, head, if is_inline { len } else { 0 }, &node.kind);
            let spot = &mut layout.spots[id.0];
            (spot.place, spot.len, spot.ordinal) =
                (at, len, u32::try_from(ordinal + 1).map_err(|_| Refusal::TooLarge)?);
            at += head + if is_inline { len } else { 0 };
            if !is_inline {
                later.push((id, len));
            }
        }
        let mut block = at.div_ceil(BLOCK) as u64 + u64::from(first);
        let block_of = |block: u64| u32::try_from(block).map_err(|_| Refusal::TooLarge);
        for (id, len) in later {
            layout.spots[id.0].data = Some(block_of(block)?);
            block += len.div_ceil(BLOCK) as u64;
        }
        layout.blocks = block_of(block)? - first;
        Ok(layout)
    }

    /// Visits directories breadth first, each followed by its entries. Counts links.
    fn walk(&mut self, tree: &Tree) -> Result<(), Refusal> {
        let mut directories = VecDeque::from([Tree::ROOT]);
        self.order.push(Tree::ROOT);
        self.spots[Tree::ROOT.0].links = 2;
        while let Some(directory) = directories.pop_front() {
            let Kind::Directory(names) = &tree.inode(directory).kind else { continue };
            for (name, id) in names {
                check_name(name)?;
                let is_new = self.spots[id.0].links == 0;
                match &tree.inode(*id).kind {
                    Kind::Directory(_) if !is_new => return Err(Refusal::DirectoryTwice),
                    Kind::Directory(_) => {
                        self.spots[directory.0].links += 1;
                        self.spots[id.0].links = 2;
                        self.spots[id.0].parent = directory.0;
                        directories.push_back(*id);
                    }
                    Kind::Symlink(target) if !(1..=LONGEST_TARGET).contains(&target.len()) => {
                        return Err(Refusal::of_file(tree, *id)(Refusal::Target(target.len())));
                    }
                    _ => self.spots[id.0].links += 1,
                }
                if is_new {
                    self.order.push(*id);
                }
            }
        }
        Ok(())
    }

    /// Bytes of the content that belongs to the metadata.
    fn content_len(&self, tree: &Tree, id: InodeId) -> usize {
        match &tree.inode(id).kind {
            Kind::Symlink(target) => target.len(),
            Kind::Directory(names) => entries::size(&entries::sorted(names, id, self.parent(id))),
            _ => 0,
        }
    }

    pub(super) fn order(&self) -> &[InodeId] {
        &self.order
    }

    /// Blocks of the area.
    pub(super) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The offset of an inode in the area.
    pub(super) fn place(&self, id: InodeId) -> usize {
        self.spots[id.0].place
    }

    /// The number by which directories name an inode.
    pub(super) fn number(&self, id: InodeId) -> u64 {
        (self.place(id) / SLOT) as u64
    }

    /// The first block on the disk of content that does not lie behind the inode.
    pub(super) fn data(&self, id: InodeId) -> Option<u32> {
        self.spots[id.0].data
    }

    /// Bytes of the content that belongs to the metadata.
    pub(super) fn len(&self, id: InodeId) -> usize {
        self.spots[id.0].len
    }

    pub(super) fn links(&self, id: InodeId) -> u32 {
        self.spots[id.0].links
    }

    /// The position of an inode among all, from 1 on.
    pub(super) fn ordinal(&self, id: InodeId) -> u32 {
        self.spots[id.0].ordinal
    }

    /// The directory that a directory is in; the root is in itself.
    pub(super) fn parent(&self, id: InodeId) -> InodeId {
        InodeId(self.spots[id.0].parent)
    }
}

/// The least offset from `at` on for an inode with attributes, of `head` bytes, and content of `len` bytes.
/// The inode lies in one block, and so does its content. A symbolic link lies in one block as a whole: Linux
/// before 6.12 takes its target for damaged otherwise (`erofs_fill_symlink`).
fn place(at: usize, head: usize, len: usize, kind: &Kind) -> usize {
    let at = at.next_multiple_of(SLOT);
    let crosses = |from: usize, len: usize| len > 0 && from / BLOCK != (from + len - 1) / BLOCK;
    let is_cut = match kind {
        Kind::Symlink(_) if len > 0 => crosses(at, head + len),
        _ => crosses(at, INODE) || crosses(at + head, len),
    };
    if is_cut { at.next_multiple_of(BLOCK) } else { at }
}

pub(super) fn check_name(name: &[u8]) -> Result<(), Refusal> {
    if is_name(name) { Ok(()) } else { Err(Refusal::Name(name.to_vec())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_lies_in_the_block_that_linux_expects() {
        let block_of = |at: usize| at / BLOCK;
        let kinds = [Kind::Symlink(b"target".to_vec()), Kind::Directory(Default::default())];
        for at in (0..2 * BLOCK).step_by(SLOT) {
            for (head, len) in [(64, 6), (64, 4000), (100, 3996), (2000, 2096), (4000, 96)] {
                for kind in &kinds {
                    let place = place(at, head, len, kind);
                    assert!(place >= at && place < at + BLOCK && place.is_multiple_of(SLOT));
                    assert_eq!(block_of(place), block_of(place + INODE - 1));
                    assert_eq!(block_of(place + head), block_of(place + head + len - 1), "{at} {head} {len}");
                    let is_link = matches!(kind, Kind::Symlink(_));
                    assert!(!is_link || block_of(place) == block_of(place + head + len - 1), "{at} {head}");
                }
            }
        }
    }
}
