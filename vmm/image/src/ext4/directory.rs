//! A directory of one block (`struct ext4_dir_entry_2`, `struct ext4_dir_entry_tail`).

use super::BLOCK;
use super::checksum::Checksum;
use super::fields::Fields;

/// Bytes of an entry before its name.
const HEAD: usize = 8;
const ALIGNMENT: usize = 4;
/// Bytes of the tail, which has the checksum, and its type.
const TAIL: usize = 12;
const TAIL_TYPE: u8 = 0xde;
/// `EXT4_FT_DIR`: all entries are directories.
const DIRECTORY: u8 = 2;

/// Tells whether entries with these names fit a block, with those of the directory itself and its parent.
pub(super) fn fits<'a>(names: impl Iterator<Item = &'a [u8]>) -> bool {
    [b".".as_slice(), b".."].into_iter().chain(names).map(len).sum::<usize>() <= BLOCK - TAIL
}

/// Encodes a directory in the root, or the root itself.
///
/// # Panics
/// The entries do not fit.
pub(super) fn encode(own: u32, entries: Vec<(&[u8], u32)>, checksum: Checksum) -> [u8; BLOCK] {
    let entries = [vec![(b".".as_slice(), own), (b"..", super::inode::ROOT)], entries].concat();
    let mut bytes = [0; BLOCK];
    let mut fields = Fields(&mut bytes);
    let mut at = 0;
    for (ordinal, (name, inode)) in entries.iter().enumerate() {
        // The free room belongs to the last entry.
        let is_last = ordinal + 1 == entries.len();
        let len = if is_last { BLOCK - TAIL - at } else { len(name) };
        fields.u32(at, *inode);
        fields.u16(at + 4, len as u16);
        fields.bytes(at + 6, &[name.len() as u8, DIRECTORY]);
        fields.bytes(at + HEAD, name);
        at += len;
    }
    fields.u16(BLOCK - TAIL + 4, TAIL as u16);
    fields.bytes(BLOCK - TAIL + 7, &[TAIL_TYPE]);
    let sum = checksum.with_inode(own).with(&fields.0[..BLOCK - TAIL]).value();
    fields.u32(BLOCK - 4, sum);
    bytes
}

/// Bytes of an entry.
fn len(name: &[u8]) -> usize {
    (HEAD + name.len()).next_multiple_of(ALIGNMENT)
}
