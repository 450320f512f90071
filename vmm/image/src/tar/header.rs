//! A header of 512 bytes with the records before it, as one entry.

use std::collections::BTreeMap;

use tar::{EntryType, Header};

use super::Malformed;
use super::pax::Records;
use crate::tree::{Device, Time};

/// A file of a stream.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The path as it is written, with whatever it begins and ends with.
    pub path: Vec<u8>,
    /// The kind of file.
    pub content: Content,
    /// The low 12 bits of `st_mode`.
    pub permissions: u16,
    /// The owner.
    pub user: u32,
    /// The owning group.
    pub group: u32,
    /// Time of the last change of the content.
    pub modified: Time,
    /// Extended attributes by their whole name.
    pub attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A kind of file, as a stream has it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Content {
    /// A regular file of `size` bytes. Bytes come for these parts alone, in order; the others are zeros.
    File {
        /// Bytes.
        size: u64,
        /// Offset and length of each part.
        parts: Vec<(u64, u64)>,
    },
    /// Another name of the file with this path.
    HardLink(Vec<u8>),
    /// A symbolic link to this path.
    Symlink(Vec<u8>),
    /// A directory.
    Directory,
    /// A block device.
    BlockDevice(Device),
    /// A character device.
    CharacterDevice(Device),
    /// A named pipe.
    Fifo,
}

/// Names that GNU's headers of their own give to the next one.
#[derive(Debug, Default)]
pub(super) struct LongNames {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
}

/// Makes an entry of its header. `size` and `parts` are those of a file.
pub(super) fn entry(
    header: &Header,
    records: &Records,
    long: LongNames,
    (size, parts): (u64, Vec<(u64, u64)>),
) -> Result<Entry, Malformed> {
    let owned = |bytes: &[u8]| bytes.to_vec();
    let path = records.get("GNU.sparse.name").or(records.get("path")).map(owned).or(long.path);
    let path = path.unwrap_or_else(|| header.path_bytes().into_owned());
    let link = records.get("linkpath").map(owned).or(long.link);
    let link = link.or_else(|| header.link_name_bytes().map(|name| name.into_owned())).unwrap_or_default();
    let is_directory_of_old = path.ends_with(b"/");
    let content = match header.entry_type() {
        // Before POSIX, a slash at the end told of a directory.
        EntryType::Regular if is_directory_of_old => Content::Directory,
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => Content::File { size, parts },
        EntryType::Link => Content::HardLink(link),
        EntryType::Symlink => Content::Symlink(link),
        EntryType::Directory => Content::Directory,
        EntryType::Block => Content::BlockDevice(device(header)?),
        EntryType::Char => Content::CharacterDevice(device(header)?),
        EntryType::Fifo => Content::Fifo,
        _ => return Err(Malformed("an entry has an unknown type")),
    };
    let old = header.as_old();
    let number = |key, raw: &[u8], field: std::io::Result<u64>| {
        let field =
            || if is_blank(raw) { Ok(0) } else { field.map_err(|_| Malformed("an owner is no number")) };
        let number = records.number(key)?.map_or_else(field, Ok)?;
        u32::try_from(number).map_err(|_| Malformed("an owner exceeds 32 bits"))
    };
    let mode =
        if is_blank(&old.mode) { 0 } else { header.mode().map_err(|_| Malformed("a mode is no number"))? };
    Ok(Entry {
        permissions: (mode & 0o7777) as u16,
        user: number("uid", &old.uid, header.uid())?,
        group: number("gid", &old.gid, header.gid())?,
        modified: records.time("mtime")?.map_or_else(|| mtime(header), Ok)?,
        attributes: attributes(records)?,
        path,
        content,
    })
}

/// Tells whether a field has no digit. Some programs leave those out that they do not know: they are zero.
fn is_blank(field: &[u8]) -> bool {
    field.iter().all(|byte| matches!(byte, 0 | b' '))
}

fn device(header: &Header) -> Result<Device, Malformed> {
    let number = |field: std::io::Result<Option<u32>>| {
        field.ok().flatten().ok_or(Malformed("the number of a device is none"))
    };
    Ok(Device { major: number(header.device_major())?, minor: number(header.device_minor())? })
}

/// The time of a header: octal, or a signed number of 95 bits after a first byte of 0x80 or 0xff.
fn mtime(header: &Header) -> Result<Time, Malformed> {
    let field = header.as_old().mtime;
    let seconds = if is_blank(&field) {
        0
    } else if field[0] & 0x80 == 0 {
        header.mtime().map_err(|_| Malformed("a time is no number"))?.cast_signed()
    } else {
        let (high, low) = field.split_at(4);
        if high != [0xff; 4] && high != [0x80, 0, 0, 0] {
            return Err(Malformed("a time exceeds 64 bits"));
        }
        i64::from_be_bytes(low.try_into().expect("8 of 12 bytes"))
    };
    Ok(Time { seconds, nanoseconds: 0 })
}

fn attributes(records: &Records) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Malformed> {
    let plain = records.beginning("SCHILY.xattr.");
    Ok(plain.map(|(name, value)| (name.to_vec(), value.to_vec())).collect())
}
