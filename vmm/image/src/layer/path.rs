//! Paths in a layer.

use crate::name::LONGEST_NAME;

/// Splits a path into names. It begins at the root, with or without a slash. Returns `None` if a name is `..`
/// or too long, or if it has a zero.
pub(super) fn names(path: &[u8]) -> Option<Vec<&[u8]>> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    names
        .map(|name| {
            let is_name = name != b".." && name.len() <= LONGEST_NAME && !name.contains(&0);
            is_name.then_some(name)
        })
        .collect()
}
