//! The content of a directory (`struct erofs_dirent`): each block has its entries first, then their names.
//! All names are in the order of their bytes, with `.` and `..` among them.

use std::collections::BTreeMap;

use super::{BLOCK, Damage};
use crate::tree::{InodeId, Kind};

const ENTRY: usize = 12;

/// Cuts names into the runs that share a block.
pub(super) fn runs<'a, T>(names: &'a [(&'a [u8], T)]) -> impl Iterator<Item = &'a [(&'a [u8], T)]> {
    let mut rest = names;
    std::iter::from_fn(move || {
        let mut len = 0;
        let fits = |(name, _): &&(&[u8], T)| {
            len += ENTRY + name.len();
            len <= BLOCK
        };
        let count = rest.iter().take_while(fits).count();
        let run = rest.split_off(..count)?;
        (!run.is_empty()).then_some(run)
    })
}

/// Returns the names of a directory with those of itself and its parent, in order.
pub(super) fn sorted(
    entries: &BTreeMap<Vec<u8>, InodeId>,
    own: InodeId,
    parent: InodeId,
) -> Vec<(&[u8], InodeId)> {
    let mut names: Vec<_> = entries.iter().map(|(name, id)| (name.as_slice(), *id)).collect();
    names.extend([(b".".as_slice(), own), (b"..", parent)]);
    names.sort_unstable_by_key(|(name, _)| *name);
    names
}

/// Returns the size of a directory: whole blocks, and what the last one holds.
pub(super) fn size(names: &[(&[u8], InodeId)]) -> usize {
    let held = |run: &[(&[u8], InodeId)]| run.iter().map(|(name, _)| ENTRY + name.len()).sum::<usize>();
    let (count, last) = runs(names).fold((0, 0), |(count, _), run| (count + 1, held(run)));
    (count - 1) * BLOCK + last
}

/// Encodes a directory. `found` gives the number and the kind of an inode.
pub(super) fn encode<'a>(names: &[(&[u8], InodeId)], found: impl Fn(InodeId) -> (u64, &'a Kind)) -> Vec<u8> {
    let mut bytes = Vec::new();
    for run in runs(names) {
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        let mut at = run.len() * ENTRY;
        for (name, id) in run {
            let (number, kind) = found(*id);
            bytes.extend(number.to_le_bytes());
            bytes.extend(u16::try_from(at).expect("within a block").to_le_bytes());
            bytes.extend([type_of(kind), 0]);
            at += name.len();
        }
        run.iter().for_each(|(name, _)| bytes.extend(*name));
    }
    bytes
}

/// Decodes a directory, and calls `each` with the name, number and type of every entry but `.` and `..`.
pub(super) fn decode(
    bytes: &[u8],
    mut each: impl FnMut(&[u8], u64, u8) -> Result<(), Damage>,
) -> Result<(), Damage> {
    const WRONG: Damage = Damage("a directory is damaged");
    let mut last: &[u8] = b"";
    for block in bytes.chunks(BLOCK) {
        let name_at = |entry: &[u8]| usize::from(u16::from_le_bytes([entry[8], entry[9]]));
        let first = block.get(..ENTRY).map(name_at).ok_or(WRONG)?;
        let table = block.get(..first).filter(|table| !table.is_empty()).ok_or(WRONG)?;
        let (entries, []) = table.as_chunks::<ENTRY>() else { return Err(WRONG) };
        for (position, entry) in entries.iter().enumerate() {
            let end = entries.get(position + 1).map_or(block.len(), |next| name_at(next));
            let name = block.get(name_at(entry)..end).ok_or(WRONG)?;
            // Zeros fill the block behind its last name.
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            if name <= last {
                return Err(WRONG);
            }
            last = name;
            if !matches!(name, b"." | b"..") {
                let number = u64::from_le_bytes(entry[..8].try_into().expect("8 bytes"));
                each(name, number, entry[10])?;
            }
        }
    }
    Ok(())
}

/// The kind of a file as an entry names it (`FT_` in include/linux/fs_types.h).
pub(super) fn type_of(kind: &Kind) -> u8 {
    match kind {
        Kind::File { .. } => 1,
        Kind::Directory(_) => 2,
        Kind::CharacterDevice(_) => 3,
        Kind::BlockDevice(_) => 4,
        Kind::Fifo => 5,
        Kind::Socket => 6,
        Kind::Symlink(_) => 7,
    }
}
