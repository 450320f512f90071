//! Extended attributes beside their inode (`struct erofs_xattr_ibody_header` and `erofs_xattr_entry`).

use std::collections::BTreeMap;

use super::{Damage, Refusal};

/// The beginnings of names that have a number (`EROFS_XATTR_INDEX_`). Two of them are whole names.
const BEGINNINGS: [(&[u8], u8); 5] = [
    (b"user.", 1),
    (b"system.posix_acl_access", 2),
    (b"system.posix_acl_default", 3),
    (b"trusted.", 4),
    (b"security.", 6),
];
const HEADER: usize = 12;
/// Entries are aligned to so many bytes, and their area is counted in these.
const ALIGNMENT: usize = 4;
/// Most bytes of all attributes: those that Linux allows in a list, and their values.
pub(super) const MOST: usize = 64 << 10;

/// Encodes the attributes of a file. There are no bytes if it has none.
pub(super) fn encode(attributes: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<Vec<u8>, Refusal> {
    if attributes.is_empty() {
        return Ok(Vec::new());
    }
    let mut bytes = vec![0; HEADER];
    for (name, value) in attributes {
        let (index, rest) = split(name).ok_or_else(|| Refusal::Attribute(name.clone()))?;
        let (Ok(name_len), Ok(value_len)) = (u8::try_from(rest.len()), u16::try_from(value.len())) else {
            return Err(Refusal::Attribute(name.clone()));
        };
        bytes.extend([name_len, index]);
        bytes.extend(value_len.to_le_bytes());
        bytes.extend(rest);
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    }
    if bytes.len() <= MOST { Ok(bytes) } else { Err(Refusal::Attributes(bytes.len())) }
}

/// The length of encoded attributes as an inode has it (`i_xattr_icount`).
pub(super) fn count(bytes: &[u8]) -> u16 {
    let words = bytes.len().saturating_sub(HEADER) / ALIGNMENT;
    if bytes.is_empty() { 0 } else { u16::try_from(words + 1).expect("at most MOST bytes") }
}

/// Tells whether a file can have an attribute of this name. Streams made on other systems have others.
#[must_use]
pub fn is_possible(name: &[u8]) -> bool {
    split(name).is_some_and(|(_, rest)| u8::try_from(rest.len()).is_ok())
}

/// Decodes attributes, from the bytes that [`encode`] gives.
pub(super) fn decode(bytes: &[u8]) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Damage> {
    const WRONG: Damage = Damage("an extended attribute is damaged");
    let mut attributes = BTreeMap::new();
    let (header, mut rest) = bytes.split_at_checked(HEADER).ok_or(WRONG)?;
    if header[4] != 0 {
        return Err(Damage("it has shared attributes, which volt-vmm does not write"));
    }
    while !rest.is_empty() {
        let (entry, behind) = rest.split_first_chunk::<4>().ok_or(WRONG)?;
        let [name_len, index, low, high] = *entry;
        let value_len = usize::from(u16::from_le_bytes([low, high]));
        let (name, behind) = behind.split_at_checked(usize::from(name_len)).ok_or(WRONG)?;
        let (value, behind) = behind.split_at_checked(value_len).ok_or(WRONG)?;
        let beginning = BEGINNINGS.iter().find(|(_, known)| *known == index).ok_or(WRONG)?.0;
        if attributes.insert([beginning, name].concat(), value.to_vec()).is_some() {
            return Err(WRONG);
        }
        let used = rest.len() - behind.len();
        rest = rest.get(used.next_multiple_of(ALIGNMENT)..).ok_or(WRONG)?;
    }
    Ok(attributes)
}

/// The length of encoded attributes for what an inode has as their length: the opposite of [`count`].
pub(super) fn len(count: u16) -> usize {
    usize::from(count).checked_sub(1).map_or(0, |words| HEADER + words * ALIGNMENT)
}

fn split(name: &[u8]) -> Option<(u8, &[u8])> {
    BEGINNINGS.iter().find_map(|(beginning, index)| {
        let rest = name.strip_prefix(*beginning)?;
        let is_whole = !beginning.ends_with(b".");
        (is_whole == rest.is_empty()).then_some((*index, rest))
    })
}
