//! Marks that a layer's tree has for the layers below it.

use crate::tree::{Device, Inode, Kind};

/// Says that a directory hides what lower layers have in it, as overlayfs says it.
pub(crate) const OPAQUE: &[u8] = b"trusted.overlay.opaque";
/// Says that the stream has a directory only in paths of others. It keeps the owner, mode, time and
/// attributes that a lower layer gives it.
pub(crate) const IMPLICIT: &[u8] = b"trusted.volt.implicit";
/// The value of both.
pub(super) const SET: &[u8] = b"y";
/// The device number of a whiteout, as overlayfs has it.
pub(crate) const WHITEOUT: Kind = Kind::CharacterDevice(Device { major: 0, minor: 0 });

/// Attributes by which overlayfs or this crate would take a file for something else. No stream gives them.
const RESERVED: [&[u8]; 2] = [b"trusted.overlay.", b"trusted.volt."];

/// Tells whether a name is of a mark.
pub(super) fn is_reserved(attribute: &[u8]) -> bool {
    RESERVED.iter().any(|beginning| attribute.starts_with(beginning))
}

/// Returns the inode without marks.
pub(crate) fn without(mut inode: Inode) -> Inode {
    inode.attributes.retain(|name, _| !is_reserved(name));
    inode
}
