//! The metadata of an EROFS file system (fs/erofs/erofs_fs.h of Linux).
//!
//! Files are plain: the content of each is a run of blocks somewhere on the disk. The metadata are a
//! superblock in the disk's first block, and an area of inodes and directories anywhere.

mod attributes;
mod device;
mod entries;
mod inode;
mod layout;
mod read;
mod superblock;

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use thiserror::Error;

pub use crate::name::LONGEST_NAME;
use crate::tree::{InodeId, Tree};
pub use attributes::is_possible as is_possible_attribute;
use layout::Layout;
pub use read::{ReadError, read};

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Longest target of a symbolic link: Linux gives a page to it, with a zero at the end.
pub const LONGEST_TARGET: usize = 4095;

/// Why a tree is no EROFS file system.
#[derive(Debug, Error)]
pub enum Refusal {
    /// A file cannot be there, for this reason.
    #[error("{path}: {reason}")]
    File {
        /// The file's path.
        path: String,
        /// The reason.
        reason: Box<Refusal>,
    },
    /// A name is empty, too long, `.` or `..`, or has a slash or a zero.
    #[error("no file can have the name {}", String::from_utf8_lossy(.0))]
    Name(Vec<u8>),
    /// The target of a symbolic link is empty or too long.
    #[error("a symbolic link has a target of {0} bytes; it may have 1 to {LONGEST_TARGET}")]
    Target(usize),
    /// EROFS has no number for the beginning of this attribute's name.
    #[error("EROFS cannot have the extended attribute {}", String::from_utf8_lossy(.0))]
    Attribute(Vec<u8>),
    /// All attributes of a file are too long.
    #[error("extended attributes of a file take {0} bytes; they may take {most}", most = attributes::MOST)]
    Attributes(usize),
    /// The device number exceeds 12 and 20 bits.
    #[error("no device has the number {0}:{1}")]
    Device(u32, u32),
    /// The file system would have 2^32 blocks or more.
    #[error("the file system would exceed 16 TiB")]
    TooLarge,
    /// A directory has two names, or is in itself.
    #[error("a directory has more than one name")]
    DirectoryTwice,
}

impl Refusal {
    /// Names the file that is refused.
    fn of_file(tree: &Tree, id: InodeId) -> impl FnOnce(Self) -> Self {
        move |reason| {
            let path = tree.path_of(id).unwrap_or_default();
            Self::File { path: String::from_utf8_lossy(&path).into_owned(), reason: Box::new(reason) }
        }
    }
}

/// A fault of a file system that is read.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("{0}")]
pub struct Damage(&'static str);

/// The metadata of a tree, laid out.
#[derive(Debug)]
pub struct Metadata<'a> {
    tree: &'a Tree,
    layout: Layout,
    first: u32,
    /// The block of the disk from which the blocks of files count.
    content: u32,
}

impl<'a> Metadata<'a> {
    /// Lays out the metadata of the files that the root leads to. The area begins at the block `first` of the
    /// disk. The blocks of files are those of the disk.
    ///
    /// # Errors
    /// EROFS cannot have the tree.
    pub fn new(tree: &'a Tree, first: u32) -> Result<Self, Refusal> {
        let layout = Layout::new(tree, first)?;
        Ok(Self { tree, layout, first, content: 0 })
    }

    /// Moves the content of files by so many blocks: behind the metadata, whose length is known only now.
    #[must_use]
    pub fn content_from(self, block: u32) -> Self {
        Self { content: block, ..self }
    }

    /// Returns the number of blocks in the area.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.layout.blocks()
    }

    /// Returns the first block of the disk. `blocks` is the number of all blocks of the disk.
    #[must_use]
    pub fn superblock(&self, blocks: u32, identity: [u8; 16]) -> [u8; BLOCK] {
        superblock::encode(&superblock::Superblock {
            root: self.layout.number(Tree::ROOT),
            inodes: self.layout.order().len() as u64,
            blocks,
            metadata: self.first,
            identity,
        })
    }

    /// Writes the area: [`Metadata::blocks`] blocks.
    ///
    /// # Errors
    /// Writing fails.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut at = 0;
        for &id in self.layout.order() {
            pad(to, &mut at, self.layout.place(id))?;
            let bytes = inode::encode(self.tree, &self.layout, id, self.content);
            to.write_all(&bytes)?;
            at += bytes.len();
        }
        for &id in self.layout.order() {
            let Some(block) = self.layout.data(id) else { continue };
            pad(to, &mut at, (block - self.first) as usize * BLOCK)?;
            let bytes = self.data(id);
            to.write_all(&bytes)?;
            at += bytes.len();
        }
        pad(to, &mut at, self.blocks() as usize * BLOCK)
    }

    fn data(&self, id: InodeId) -> Vec<u8> {
        inode::content(self.tree, &self.layout, id).unwrap_or_default()
    }
}

/// Appends the metadata of a tree to a file of `blocks` blocks: a free one, and the content of its files.
/// Writes the superblock into the free one.
///
/// # Errors
/// EROFS cannot have the tree. The inner result has the host's refusal to write.
pub fn append(tree: &Tree, file: &File, blocks: u32, identity: [u8; 16]) -> Result<io::Result<()>, Refusal> {
    let metadata = Metadata::new(tree, blocks)?;
    let all = blocks.checked_add(metadata.blocks()).ok_or(Refusal::TooLarge)?;
    let write = || {
        let mut end = file;
        end.seek(SeekFrom::Start(u64::from(blocks) * BLOCK as u64))?;
        let mut buffered = BufWriter::with_capacity(1 << 20, end);
        metadata.write(&mut buffered)?;
        buffered.into_inner()?;
        file.write_all_at(&metadata.superblock(all, identity), 0)
    };
    Ok(write())
}

/// Writes zeros up to an offset.
fn pad(to: &mut impl Write, at: &mut usize, end: usize) -> io::Result<()> {
    const ZEROS: [u8; BLOCK] = [0; BLOCK];
    while *at < end {
        let count = (end - *at).min(BLOCK);
        to.write_all(&ZEROS[..count])?;
        *at += count;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{find, read};

    #[test]
    fn refusal_names_the_file() {
        let (mut layer, _) = read(&["d/e/f", "g"]).unwrap();
        let id = find(&layer.tree, "d/e/f");
        layer.tree.inode_mut(id).attributes.insert(b"user.a".to_vec(), vec![0; 70_000]);
        let refusal = Metadata::new(&layer.tree, layer.blocks).unwrap_err().to_string();
        assert!(refusal.starts_with("/d/e/f: EROFS cannot have the extended attribute user.a"), "{refusal}");
    }
}
