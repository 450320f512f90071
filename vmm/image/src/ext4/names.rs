//! The directories of an empty file system: the root, `lost+found`, and those that a caller names.

use std::collections::BTreeSet;

use super::inode::{Inode, ROOT};
use super::layout::FIRST_INODE;
use super::{Refusal, directory};
use crate::name::is_name;

/// Programs that check a disk put files without a name there.
const LOST_AND_FOUND: &str = "lost+found";

#[derive(Debug)]
pub(super) struct Names<'a>(Vec<&'a str>);

impl<'a> Names<'a> {
    pub(super) fn new(given: &[&'a str]) -> Result<Self, Refusal> {
        let names: Vec<_> = [LOST_AND_FOUND].into_iter().chain(given.iter().copied()).collect();
        let mut seen = BTreeSet::new();
        for name in &names {
            if !is_name(name.as_bytes()) {
                return Err(Refusal::Name((*name).to_owned()));
            }
            if !seen.insert(name) {
                return Err(Refusal::NameTwice((*name).to_owned()));
            }
        }
        let fit = directory::fits(names.iter().map(|name| name.as_bytes()));
        if fit { Ok(Self(names)) } else { Err(Refusal::Names(given.len())) }
    }

    /// Counts the directories, with the root.
    pub(super) fn directories(&self) -> u32 {
        1 + self.0.len() as u32
    }

    /// Lists the inodes of all directories, the root first. They have no blocks yet.
    pub(super) fn inodes(&self) -> impl Iterator<Item = Inode> {
        let inode = |number, permissions: u16, links| Inode {
            number,
            mode: 0o4_0000 | permissions,
            links,
            blocks: 0..0,
        };
        // Each directory links to itself and to its parent.
        let root = inode(ROOT, 0o755, 1 + self.directories() as u16);
        let below = (FIRST_INODE..)
            .zip(&self.0)
            .map(move |(number, name)| inode(number, if *name == LOST_AND_FOUND { 0o700 } else { 0o755 }, 2));
        [root].into_iter().chain(below)
    }

    /// Lists the entries of a directory, without those of itself and its parent.
    pub(super) fn entries(&self, of: u32) -> Vec<(&[u8], u32)> {
        let names = if of == ROOT { self.0.as_slice() } else { &[] };
        names.iter().map(|name| name.as_bytes()).zip(FIRST_INODE..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_and_repeated_names_are_refused() {
        for name in ["", ".", "..", "a/b", "a\0", "n".repeat(256).as_str()] {
            assert!(matches!(Names::new(&[name]), Err(Refusal::Name(refused)) if refused == name));
        }
        for names in [["lost+found", "a"], ["a", "a"]] {
            assert!(matches!(Names::new(&names), Err(Refusal::NameTwice(refused)) if refused == names[0]));
        }
    }

    #[test]
    fn names_beyond_a_block_are_refused() {
        let names: Vec<_> = (0..336).map(|number| format!("{number:03}")).collect();
        let mut names: Vec<_> = names.iter().map(String::as_str).collect();
        assert_eq!(Names::new(&names).unwrap().directories(), 338);
        names.push("one more");
        assert!(matches!(Names::new(&names), Err(Refusal::Names(337))));
    }
}
