//! Empty ext4 file systems in sparse files (fs/ext4/ext4.h of Linux, Documentation/filesystems/ext4).
//!
//! Linux mounts them read-write from 6.1 on. A file of zeros needs few writes: inode tables are empty, and
//! most bitmaps follow from a flag. [`FileSystem::write`] allocates 40 KiB for 8 MiB, 160 KiB for 10 GiB,
//! 12 MiB for 1 TiB, and 24 MiB for 16 TiB.
//!
//! ```text
//! group 0   superblock, descriptors | bitmaps and inode tables of 16 groups | directories | journal
//! group 1   superblock, descriptors | free
//! group 2   free; the journal on disks of 16 GiB and more
//! group 16  bitmaps and inode tables of 16 groups | free
//! ```
//!
//! Groups 3, 5, 7 and their powers begin with copies too, up to 1 TiB. Larger disks would spend much on
//! copies; theirs is in group 1 alone, and Linux does not enlarge these while they are mounted.
//!
//! No blocks are kept for root, because the disk has no other user. After an error Linux mounts the disk
//! read-only: further writes would spread the damage, and the VM's programs would not notice.

mod bitmap;
mod checksum;
mod descriptor;
mod directory;
mod extent;
mod fields;
mod inode;
mod journal;
mod layout;
mod names;
mod superblock;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use thiserror::Error;

use checksum::Checksum;
use inode::Inode;
use layout::{DESCRIPTOR, Layout};
use names::Names;

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Least size of a disk. A journal has 4 MiB at least, and takes half of this disk.
pub const SMALLEST: u64 = 8 << 20;
/// Largest size of a disk.
pub const LARGEST: u64 = 16 << 40;

/// Describes an empty file system.
#[derive(Clone, Debug)]
pub struct Description<'a> {
    /// Bytes of the disk. The file system leaves out what is less than a block at the end, and a last group
    /// of blocks that has too little room for its metadata.
    pub size: u64,
    /// The UUID of the file system.
    pub identity: [u8; 16],
    /// Random bytes, by which Linux spreads names over a directory's index.
    pub hash_seed: [u8; 16],
    /// Seconds since 1970 that all times have. The latest possible one is in the year 2446.
    pub made: u64,
    /// Names of empty directories in the root, beside `lost+found`. They belong to root and have mode 0755.
    pub directories: &'a [&'a str],
}

/// Why there is no file system of a description.
#[derive(Debug, Error)]
pub enum Refusal {
    /// The disk cannot hold a journal, or exceeds the numbers of blocks.
    #[error("an ext4 disk cannot have {0} bytes; give it 8 MiB to 16 TiB")]
    Size(u64),
    /// A name is empty, too long, `.` or `..`, or has a slash or a zero.
    #[error("no directory can have the name {0:?}")]
    Name(String),
    /// Two directories have one name, or one has that of `lost+found`.
    #[error("an ext4 disk has the directory {0:?} already; give each another name")]
    NameTwice(String),
    /// The names exceed the first block of the root.
    #[error("an ext4 disk cannot begin with {0} directories of such long names; give fewer")]
    Names(usize),
}

/// An empty file system, laid out.
#[derive(Debug)]
pub struct FileSystem<'a> {
    description: Description<'a>,
    names: Names<'a>,
    layout: Layout,
    checksum: Checksum,
}

impl<'a> FileSystem<'a> {
    /// Lays out a file system.
    ///
    /// # Errors
    /// The size or a name is impossible.
    pub fn new(description: Description<'a>) -> Result<Self, Refusal> {
        if !(SMALLEST..=LARGEST).contains(&description.size) {
            return Err(Refusal::Size(description.size));
        }
        let names = Names::new(description.directories)?;
        let layout = Layout::new(description.size, names.directories());
        let description = Description { made: description.made.min(inode::LATEST), ..description };
        let checksum = Checksum::NEW.with(&description.identity);
        Ok(Self { description, names, layout, checksum })
    }

    /// Replaces the content of a file, whose length becomes the size of the disk. The file is sparse.
    ///
    /// # Errors
    /// The file cannot have this length, or writing fails. No program mounts the file then: its first
    /// superblock comes last.
    pub fn write(&self, file: &File) -> io::Result<()> {
        file.set_len(0)?;
        file.set_len(self.description.size)?;
        self.write_files(file)?;
        let descriptors = self.write_bitmaps(file)?;
        let copies = (0..self.layout.groups()).filter(|group| self.layout.has_copy(*group));
        for group in copies.rev() {
            let start = offset(self.layout.start(group));
            file.write_all_at(&descriptors, start + BLOCK as u64)?;
            let at = if group == 0 { superblock::OFFSET } else { start };
            file.write_all_at(&superblock::encode(&self.description, &self.layout, group), at)?;
        }
        Ok(())
    }

    /// Writes directories, the journal and the inodes of both.
    fn write_files(&self, file: &File) -> io::Result<()> {
        let mut inodes = vec![0; self.layout.used_inodes(0) as usize * inode::SIZE];
        let mut add = |inode: &Inode| {
            let at = (inode.number as usize - 1) * inode::SIZE;
            inodes[at..at + inode::SIZE].copy_from_slice(&inode.encode(self.description.made, self.checksum));
        };
        let journal = self.layout.journal();
        add(&Inode::journal(journal.clone()));
        file.write_all_at(&journal::encode(&journal, &self.description.identity), offset(journal.start))?;
        for (ordinal, inode) in (0..).zip(self.names.inodes()) {
            let block = self.layout.directory(ordinal);
            let content = directory::encode(inode.number, self.names.entries(inode.number), self.checksum);
            file.write_all_at(&content, offset(block))?;
            add(&Inode { blocks: block..block + 1, ..inode });
        }
        file.write_all_at(&inodes, offset(self.layout.inode_table(0)))
    }

    /// Writes the bitmaps that Linux cannot derive. Returns the descriptors of all groups.
    fn write_bitmaps(&self, file: &File) -> io::Result<Vec<u8>> {
        let mut descriptors = Vec::with_capacity(self.layout.groups() as usize * DESCRIPTOR);
        for group in 0..self.layout.groups() {
            let (blocks, inodes) = (bitmap::blocks(&self.layout, group), bitmap::inodes(&self.layout, group));
            if let Some(bitmap) = &blocks {
                file.write_all_at(bitmap, offset(self.layout.block_bitmap(group)))?;
            }
            if let Some(bitmap) = &inodes {
                file.write_all_at(bitmap, offset(self.layout.inode_bitmap(group)))?;
            }
            let sums = descriptor::Sums {
                blocks: blocks.map(|bitmap| self.checksum.with(&bitmap).value()),
                inodes: inodes.map(|bitmap| {
                    self.checksum.with(&bitmap[..self.layout.inodes_per_group() as usize / 8]).value()
                }),
            };
            descriptors.extend(descriptor::encode(&self.layout, group, &sums, self.checksum));
        }
        Ok(descriptors)
    }
}

/// The offset of a block on the disk.
fn offset(block: u64) -> u64 {
    block * BLOCK as u64
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    const DESCRIPTION: Description = Description {
        size: SMALLEST,
        identity: [1; 16],
        hash_seed: [2; 16],
        made: 3,
        directories: &["upper", "work"],
    };

    #[test]
    fn size_outside_the_limits_is_refused() {
        for size in [0, SMALLEST - 1, LARGEST + 1, u64::MAX] {
            let refused = FileSystem::new(Description { size, ..DESCRIPTION });
            assert!(matches!(refused, Err(Refusal::Size(named)) if named == size));
        }
        for size in [SMALLEST, LARGEST] {
            FileSystem::new(Description { size, ..DESCRIPTION }).unwrap();
        }
    }

    #[test]
    fn content_of_the_file_is_replaced() {
        let written = |before: &[u8]| {
            let mut file = File::from(memfd_create("disk", MemfdFlags::CLOEXEC).unwrap());
            file.write_all_at(before, 0).unwrap();
            FileSystem::new(DESCRIPTION).unwrap().write(&file).unwrap();
            let mut content = Vec::new();
            file.read_to_end(&mut content).unwrap();
            content
        };
        let content = written(b"");
        assert_eq!(content.len() as u64, SMALLEST);
        assert!(content == written(&[0xff; 9 << 20]));
    }
}
