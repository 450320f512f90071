//! Reads the metadata of a file system that this module wrote.
//!
//! Whatever the bytes are, reading them ends, and takes memory in proportion to their number: each inode is
//! read once, and all contents together are no longer than the area that they lie in.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use thiserror::Error;

use super::device::decoded;
use super::inode::{EXTENDED, INLINE, PLAIN, type_bits};
use super::layout::{INODE, SLOT, check_name};
use super::superblock::{self, Superblock};
use super::{BLOCK, Damage, attributes, entries};
use crate::tree::{Inode, InodeId, Kind, Time, Tree};

/// Why a file system cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The host cannot read the file.
    #[error(transparent)]
    Host(#[from] io::Error),
    /// The file has what no file of this module has.
    #[error(transparent)]
    Damage(#[from] Damage),
}

/// Reads the tree of a file system.
///
/// # Errors
/// The host cannot read the file, or this module has not written it.
pub fn read(file: &File) -> Result<Tree, ReadError> {
    let len = file.metadata()?.len();
    let mut block = [0; BLOCK];
    if len < BLOCK as u64 {
        return Err(Damage("it is shorter than a block").into());
    }
    file.read_exact_at(&mut block, 0)?;
    let superblock = superblock::decode(&block)?;
    let [first, end] = [superblock.metadata, superblock.blocks].map(|block| u64::from(block) * BLOCK as u64);
    if first >= end || end > len {
        return Err(Damage("it is shorter than its superblock says").into());
    }
    let mut bytes = vec![0; usize::try_from(end - first).map_err(|_| Damage("it is too large"))?];
    file.read_exact_at(&mut bytes, first)?;
    let area = Area { left: Cell::new(bytes.len()), bytes, superblock };
    Ok(area.tree()?)
}

/// The area of inodes and directories.
struct Area {
    bytes: Vec<u8>,
    superblock: Superblock,
    /// Bytes of content that may yet be read.
    left: Cell<usize>,
}

/// An inode, and the content that belongs to the metadata.
struct Found<'a> {
    inode: Inode,
    content: &'a [u8],
}

impl Area {
    fn tree(&self) -> Result<Tree, Damage> {
        let root = self.inode(self.superblock.root)?;
        if !matches!(root.inode.kind, Kind::Directory(_)) {
            return Err(Damage("its root is no directory"));
        }
        let mut tree = Tree::new(root.inode);
        let mut known = HashMap::from([(self.superblock.root, Tree::ROOT)]);
        let mut directories = vec![(Tree::ROOT, root.content)];
        while let Some((directory, content)) = directories.pop() {
            entries::decode(content, |name, number, kind| {
                check_name(name).map_err(|_| Damage("a directory is damaged"))?;
                let id = match known.get(&number) {
                    Some(id) if tree.is_directory(*id) => return Err(Damage("a directory has two names")),
                    Some(id) => *id,
                    None => {
                        let Found { inode, content } = self.inode(number)?;
                        let id = tree.add(inode);
                        known.insert(number, id);
                        if tree.is_directory(id) {
                            directories.push((id, content));
                        }
                        id
                    }
                };
                let is_named = entries::type_of(&tree.inode(id).kind) == kind;
                tree.link(directory, name, id);
                if is_named { Ok(()) } else { Err(Damage("a directory names a wrong kind of file")) }
            })?;
        }
        Ok(tree)
    }

    fn inode(&self, number: u64) -> Result<Found<'_>, Damage> {
        const OUTSIDE: Damage = Damage("an inode lies outside of the metadata");
        const UNKNOWN: Damage = Damage("an inode is of a kind that volt-vmm does not write");
        let at = usize::try_from(number).ok().and_then(|number| number.checked_mul(SLOT)).ok_or(OUTSIDE)?;
        let bytes = self.bytes.get(at..).ok_or(OUTSIDE)?;
        let (head, behind) = bytes.split_first_chunk::<INODE>().ok_or(OUTSIDE)?;
        let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let (format, mode, size, location) = (half(0), half(4), long(8), word(16));
        let attributes_len = attributes::len(half(2));
        let attributes = self.take(behind.get(..attributes_len).ok_or(OUTSIDE)?)?;
        let attributes =
            if attributes.is_empty() { BTreeMap::new() } else { attributes::decode(attributes)? };
        let kind = kind_of(mode, size, location).ok_or(UNKNOWN)?;
        let content = match (format ^ EXTENDED, &kind) {
            (PLAIN, Kind::File { size, block }) => {
                let end = u64::from(*block) + size.div_ceil(BLOCK as u64);
                if end > u64::from(self.superblock.blocks) {
                    return Err(Damage("the content of a file lies outside of the file system"));
                }
                &[]
            }
            (INLINE, Kind::Directory(_) | Kind::Symlink(_)) => {
                self.content(at + INODE + attributes_len, size)?
            }
            (PLAIN, Kind::Directory(_) | Kind::Symlink(_)) => {
                let block = location.checked_sub(self.superblock.metadata).ok_or(OUTSIDE)?;
                self.content(block as usize * BLOCK, size)?
            }
            (PLAIN | INLINE, _) => &[],
            _ => return Err(UNKNOWN),
        };
        let kind = if let Kind::Symlink(_) = kind { Kind::Symlink(content.to_vec()) } else { kind };
        let modified = Time { seconds: long(32).cast_signed(), nanoseconds: word(40) };
        let (permissions, user, group) = (mode & 0o7777, word(24), word(28));
        Ok(Found { inode: Inode { kind, permissions, user, group, modified, attributes }, content })
    }

    fn content(&self, at: usize, size: u64) -> Result<&[u8], Damage> {
        const OUTSIDE: Damage = Damage("content lies outside of the metadata");
        let end = usize::try_from(size).ok().and_then(|size| at.checked_add(size)).ok_or(OUTSIDE)?;
        self.take(self.bytes.get(at..end).ok_or(OUTSIDE)?)
    }

    /// Counts bytes as read.
    fn take<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], Damage> {
        let left = self.left.get().checked_sub(bytes.len()).ok_or(Damage("contents overlap"))?;
        self.left.set(left);
        Ok(bytes)
    }
}

/// The kind of file of a mode. Directories and symbolic links are empty yet.
fn kind_of(mode: u16, size: u64, location: u32) -> Option<Kind> {
    let kinds = [
        Kind::File { size, block: location },
        Kind::Directory(BTreeMap::<Vec<u8>, InodeId>::new()),
        Kind::Symlink(Vec::new()),
        Kind::BlockDevice(decoded(location)),
        Kind::CharacterDevice(decoded(location)),
        Kind::Fifo,
        Kind::Socket,
    ];
    kinds.into_iter().find(|kind| type_bits(kind) == mode & 0o17_0000)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::erofs::Metadata;
    use crate::testing::{list, memory, read as layer};

    fn image() -> (Tree, File) {
        let entries = ["a", "d/b", "d/c -> ../a", "e/", "l => a", ".wh.x", "d/.wh..wh..opq"];
        let (layer, blob) = layer(&entries).unwrap();
        let metadata = Metadata::new(&layer.tree, layer.blocks).unwrap();
        blob.write_all_at(&metadata.superblock(layer.blocks + metadata.blocks(), [1; 16]), 0).unwrap();
        let mut bytes = Vec::new();
        metadata.write(&mut bytes).unwrap();
        blob.write_all_at(&bytes, u64::from(layer.blocks) * BLOCK as u64).unwrap();
        (layer.tree, blob)
    }

    #[test]
    fn written_tree_is_read_with_marks_and_links() {
        let (written, file) = image();
        let found = read(&file).unwrap();
        assert_eq!(list(&found), list(&written));
        let id = |tree: &Tree, path| crate::testing::find(tree, path);
        assert_eq!(id(&found, "a"), id(&found, "l"));
        for path in ["a", "d", "d/b", "d/c", "e"] {
            let [found, written] = [&found, &written].map(|tree| tree.inode(id(tree, path)));
            let of = |inode: &Inode| (inode.permissions, inode.user, inode.group, inode.modified);
            assert_eq!(of(found), of(written), "{path}");
            assert_eq!(found.attributes, written.attributes, "{path}");
            assert_eq!(matches!(found.kind, Kind::File { .. }), matches!(written.kind, Kind::File { .. }));
        }
    }

    #[test]
    fn each_changed_byte_is_read_or_refused() {
        let (_, file) = image();
        let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let first = superblock::decode(bytes.first_chunk().unwrap()).unwrap().metadata as usize * BLOCK;
        let mut refused = 0;
        for at in first..bytes.len() {
            for value in [0, 0xff, bytes[at] ^ 1] {
                let copy = memory(&bytes);
                copy.write_all_at(&[value], at as u64).unwrap();
                refused += u32::from(read(&copy).is_err());
            }
        }
        assert!(refused > 100, "{refused}");
        for at in [1024, 1030, 1100] {
            let copy = memory(&bytes);
            copy.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
            assert!(matches!(read(&copy), Err(ReadError::Damage(_))), "{at}");
        }
    }
}
