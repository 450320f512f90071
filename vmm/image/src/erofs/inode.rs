//! Inodes in their long form (`struct erofs_inode_extended`).

use super::device::encoded;
use super::layout::{INODE, Layout};
use super::{attributes, entries};
use crate::tree::{InodeId, Kind, Tree};

/// The long form, in `i_format`.
pub(super) const EXTENDED: u16 = 1;
/// Where the content lies, in `i_format`: in blocks of its own, or behind the attributes.
pub(super) const PLAIN: u16 = 0 << 1;
pub(super) const INLINE: u16 = 2 << 1;

/// Encodes an inode, with attributes and with content that lies beside it. The blocks of files count from
/// `content_from` on.
pub(super) fn encode(tree: &Tree, layout: &Layout, id: InodeId, content_from: u32) -> Vec<u8> {
    let inode = tree.inode(id);
    let attributes = attributes::encode(&inode.attributes).expect("encoded before");
    let inline = if layout.data(id).is_none() { content(tree, layout, id) } else { None };
    let size = match &inode.kind {
        Kind::File { size, .. } => *size,
        _ => layout.len(id) as u64,
    };
    let location = match &inode.kind {
        Kind::File { block, size } if *size > 0 => block.saturating_add(content_from),
        Kind::File { .. } => 0,
        Kind::BlockDevice(device) | Kind::CharacterDevice(device) => {
            encoded(*device).expect("encoded before")
        }
        _ => layout.data(id).unwrap_or(0),
    };
    let format = EXTENDED | if inline.is_some() { INLINE } else { PLAIN };
    let mut bytes = Vec::with_capacity(INODE);
    bytes.extend(format.to_le_bytes());
    bytes.extend(attributes::count(&attributes).to_le_bytes());
    bytes.extend((type_bits(&inode.kind) | inode.permissions & 0o7777).to_le_bytes());
    bytes.extend([0; 2]);
    bytes.extend(size.to_le_bytes());
    bytes.extend(location.to_le_bytes());
    bytes.extend(layout.ordinal(id).to_le_bytes());
    bytes.extend(inode.user.to_le_bytes());
    bytes.extend(inode.group.to_le_bytes());
    bytes.extend(inode.modified.seconds.to_le_bytes());
    bytes.extend(inode.modified.nanoseconds.to_le_bytes());
    bytes.extend(layout.links(id).to_le_bytes());
    bytes.resize(INODE, 0);
    bytes.extend(attributes);
    bytes.extend(inline.into_iter().flatten());
    bytes
}

/// The content that belongs to the metadata: that of directories and symbolic links.
pub(super) fn content(tree: &Tree, layout: &Layout, id: InodeId) -> Option<Vec<u8>> {
    match &tree.inode(id).kind {
        Kind::Symlink(target) => Some(target.clone()),
        Kind::Directory(names) => {
            let names = entries::sorted(names, id, layout.parent(id));
            Some(entries::encode(&names, |id| (layout.number(id), &tree.inode(id).kind)))
        }
        _ => None,
    }
}

/// The type of a file in `st_mode`.
pub(super) fn type_bits(kind: &Kind) -> u16 {
    match kind {
        Kind::Fifo => 0o01_0000,
        Kind::CharacterDevice(_) => 0o02_0000,
        Kind::Directory(_) => 0o04_0000,
        Kind::BlockDevice(_) => 0o06_0000,
        Kind::File { .. } => 0o10_0000,
        Kind::Symlink(_) => 0o12_0000,
        Kind::Socket => 0o14_0000,
    }
}
