//! Makes the tree of a layer, entry by entry.
//!
//! A later entry replaces an earlier one of its path, but a directory keeps its entries. A path may lead
//! through symbolic links of the layer, as it does where a layer is unpacked into a directory.

use std::collections::BTreeSet;

use super::marks::{IMPLICIT, OPAQUE, SET, WHITEOUT, is_reserved};
use super::path::names;
use super::{LayerError, shown};
use crate::erofs::{LONGEST_TARGET, is_possible_attribute};
use crate::tar::Entry;
use crate::tree::{Inode, InodeId, Kind, Tree};

/// Begins the names by which a layer removes files (OCI image specification, layer.md, Whiteouts).
const REMOVES: &[u8] = b".wh.";
/// Names that begin so are not of files: aufs keeps its own under them. One is a mark.
const OF_AUFS: &[u8] = b".wh..wh.";
const MAKES_OPAQUE: &[u8] = b".wh..wh..opq";
/// Most symbolic links in a path, as for Linux.
const MOST_LINKS: usize = 40;

/// Most files of a layer, and most bytes of their names, targets and attributes: a tree is in memory.
const MOST_FILES: usize = 4 << 20;
const MOST_HELD: usize = 1 << 30;
/// Bytes that a name or an attribute takes beside its own.
const OVERHEAD: usize = 128;
/// Longest path, as for Linux.
const LONGEST_PATH: usize = 4096;
/// Most steps along all paths: links may lead to links.
const MOST_STEPS: usize = 1 << 28;

#[derive(Debug)]
pub(super) struct Builder {
    tree: Tree,
    most_files: usize,
    /// Bytes of names, targets and attributes that may yet come.
    left: usize,
    /// Steps along paths that may yet be made.
    steps: usize,
    /// Directories, and the names that they hide.
    removed: Vec<(InodeId, Vec<u8>)>,
    opaque: BTreeSet<InodeId>,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            tree: Tree::new(implicit()),
            most_files: MOST_FILES,
            left: MOST_HELD,
            steps: MOST_STEPS,
            removed: Vec::new(),
            opaque: BTreeSet::new(),
        }
    }

    /// Adds a file, or a mark that removes one.
    pub(super) fn add(&mut self, entry: Entry, kind: Kind) -> Result<(), LayerError> {
        let path = entry.path.clone();
        let target = if let Kind::Symlink(target) = &kind { target.len() } else { 0 };
        if path.len() > LONGEST_PATH || target > LONGEST_TARGET {
            return Err(LayerError::Path(shown(&path)));
        }
        let attributes = entry.attributes.iter().map(|(name, value)| name.len() + value.len() + OVERHEAD);
        self.hold(path.len() + target + attributes.sum::<usize>())?;
        if self.takes_mark(&path)? {
            return Ok(());
        }
        let Some((directory, name)) = self.place(&path)? else {
            if matches!(kind, Kind::Directory(_)) {
                self.describe(Tree::ROOT, entry);
                return Ok(());
            }
            return Err(LayerError::Path(shown(&path)));
        };
        match (self.tree.entry(directory, &name), &kind) {
            (Some(old), Kind::Directory(_)) if self.tree.is_directory(old) => self.describe(old, entry),
            _ => {
                let new = self.tree.add(Inode { kind, ..Inode::directory(0) });
                self.describe(new, entry);
                self.tree.link(directory, &name, new);
            }
        }
        Ok(())
    }

    /// Counts the bytes of an entry, and the files before it.
    fn hold(&mut self, bytes: usize) -> Result<(), LayerError> {
        if self.tree.len() > self.most_files {
            return Err(LayerError::Crowded(format!("{} files", self.most_files)));
        }
        let crowded = || LayerError::Crowded(format!("{MOST_HELD} bytes of names and attributes"));
        self.left = self.left.checked_sub(bytes + OVERHEAD).ok_or_else(crowded)?;
        Ok(())
    }

    /// Takes a path for a mark, and tells whether it is one. Files of aufs itself are not of the layer.
    fn takes_mark(&mut self, path: &[u8]) -> Result<bool, LayerError> {
        let refused = || LayerError::Path(shown(path));
        let names = names(path).ok_or_else(refused)?;
        let Some((last, parents)) = names.split_last() else { return Ok(false) };
        let is_own = |name: &&[u8]| name.starts_with(OF_AUFS);
        if parents.iter().any(is_own) || is_own(last) && *last != MAKES_OPAQUE {
            return Ok(true);
        }
        let Some(removed) = last.strip_prefix(REMOVES) else { return Ok(false) };
        if matches!(removed, b"" | b"." | b"..") {
            return Err(refused());
        }
        let directory = self.walk(parents).ok_or_else(refused)?;
        if *last == MAKES_OPAQUE {
            self.opaque.insert(directory);
        } else {
            self.removed.push((directory, removed.to_vec()));
        }
        Ok(true)
    }

    /// Gives a file of the layer another name.
    pub(super) fn link(&mut self, path: &[u8], target: &[u8]) -> Result<(), LayerError> {
        if path.len() > LONGEST_PATH || target.len() > LONGEST_PATH {
            return Err(LayerError::Path(shown(path)));
        }
        self.hold(path.len() + target.len())?;
        // aufs has its marks as hard links to one file.
        if self.takes_mark(path)? {
            return Ok(());
        }
        let refused = || LayerError::Link { path: shown(path), target: shown(target) };
        let found =
            self.existing(target).filter(|found| !self.tree.is_directory(*found)).ok_or_else(refused)?;
        let (directory, name) = self.place(path)?.ok_or_else(|| LayerError::Path(shown(path)))?;
        self.tree.link(directory, &name, found);
        Ok(())
    }

    /// Marks what is removed and opaque.
    pub(super) fn finish(mut self) -> Tree {
        for (directory, name) in std::mem::take(&mut self.removed) {
            match self.tree.entry(directory, &name) {
                // The layer has another file there, which hides the lower one; a directory would be merged.
                Some(found) if self.tree.is_directory(found) => {
                    self.opaque.insert(found);
                    // The lower directory is gone, so that this one takes nothing from it.
                    self.tree.inode_mut(found).attributes.remove(IMPLICIT);
                }
                Some(_) => {}
                None => {
                    let whiteout = self.tree.add(Inode { kind: WHITEOUT, ..Inode::directory(0) });
                    self.tree.link(directory, &name, whiteout);
                }
            }
        }
        for directory in self.opaque {
            self.tree.inode_mut(directory).attributes.insert(OPAQUE.to_vec(), SET.to_vec());
        }
        self.tree
    }

    /// Finds the directory of a path, making what is missing, and the last name. The root has none.
    fn place(&mut self, path: &[u8]) -> Result<Option<(InodeId, Vec<u8>)>, LayerError> {
        let refused = || LayerError::Path(shown(path));
        let mut names = names(path).ok_or_else(refused)?;
        let Some(last) = names.pop() else { return Ok(None) };
        let directory = self.walk(&names).ok_or_else(refused)?;
        Ok(Some((directory, last.to_vec())))
    }

    /// Walks along names from the root, and makes directories where there are none.
    fn walk(&mut self, names: &[&[u8]]) -> Option<InodeId> {
        let mut rest: Vec<Vec<u8>> = names.iter().rev().map(|name| name.to_vec()).collect();
        let (mut parents, mut links) = (vec![Tree::ROOT], 0);
        while let Some(name) = rest.pop() {
            self.steps = self.steps.checked_sub(1)?;
            let directory = *parents.last()?;
            match self.tree.entry(directory, &name) {
                _ if name == b".." => drop(parents.len() > 1 && parents.pop().is_some()),
                Some(found) if self.tree.is_directory(found) => parents.push(found),
                Some(found) if matches!(self.tree.inode(found).kind, Kind::Symlink(_)) => {
                    links += 1;
                    let Kind::Symlink(target) = &self.tree.inode(found).kind else { continue };
                    if links > MOST_LINKS {
                        return None;
                    }
                    if target.starts_with(b"/") {
                        parents.truncate(1);
                    }
                    let names = target.split(|byte| *byte == b'/').rev();
                    rest.extend(names.filter(|name| !matches!(*name, b"" | b".")).map(<[u8]>::to_vec));
                }
                _ => {
                    let made = self.tree.add(implicit());
                    self.tree.link(directory, &name, made);
                    parents.push(made);
                }
            }
        }
        parents.pop()
    }

    /// Finds a file of the layer. A symbolic link at the end is not followed.
    fn existing(&mut self, path: &[u8]) -> Option<InodeId> {
        let mut names = names(path)?;
        let last = names.pop()?;
        // This makes directories for a path that does not exist, but the layer is refused then.
        let directory = self.walk(&names)?;
        self.tree.entry(directory, last)
    }

    /// Gives an inode what an entry says of it, but for its kind.
    fn describe(&mut self, id: InodeId, entry: Entry) {
        let inode = self.tree.inode_mut(id);
        (inode.permissions, inode.user, inode.group) = (entry.permissions, entry.user, entry.group);
        inode.modified = entry.modified;
        inode.attributes = entry.attributes;
        // Linux would refuse other attributes, such as those of macOS, and docker leaves them out too.
        inode.attributes.retain(|name, _| !is_reserved(name) && is_possible_attribute(name));
    }
}

/// A directory that only paths of others name.
fn implicit() -> Inode {
    let mut inode = Inode::directory(0o755);
    inode.attributes.insert(IMPLICIT.to_vec(), SET.to_vec());
    inode
}

#[cfg(test)]
mod tests {
    use super::super::LayerError;
    use super::super::marks::IMPLICIT;
    use super::Builder;
    use crate::tar::Reader;
    use crate::testing::{content, find, list, read, stream};
    use crate::tree::Kind;

    fn listed(entries: &[&str]) -> Vec<String> {
        list(&read(entries).unwrap().0.tree)
    }

    #[test]
    fn parents_without_an_entry_are_implicit() {
        let (layer, blob) = read(&["./a/b/c", "a/d/", "/e"]).unwrap();
        assert_eq!(list(&layer.tree), ["a/", "a/b/", "a/b/c", "a/d/", "e"]);
        let is_implicit = |path| layer.tree.inode(find(&layer.tree, path)).attributes.contains_key(IMPLICIT);
        assert!(is_implicit("a") && is_implicit("a/b") && !is_implicit("a/d"));
        assert_eq!(content(&layer.tree, "a/b/c", 0, &blob), "./a/b/c");
    }

    #[test]
    fn later_entry_replaces_an_earlier_one_but_a_directory_keeps_its_entries() {
        assert_eq!(listed(&["a/b", "a/", "c", "c/d", "e/f", "e"]), ["a/", "a/b", "c/", "c/d", "e"]);
    }

    #[test]
    fn paths_lead_through_symbolic_links_but_never_out() {
        assert_eq!(listed(&["x/", "l -> /x/../../y", "l/f"]), ["l -> /x/../../y", "x/", "y/", "y/f"]);
        assert_eq!(listed(&["d/l -> ../e", "d/l/f"]), ["d/", "d/l -> ../e", "e/", "e/f"]);
        for path in ["../a", "a/../../b", "a/..", "/..", "", "."] {
            assert!(matches!(read(&[path]), Err(LayerError::Path(_))), "{path}");
        }
        assert!(matches!(read(&["a -> b", "b -> a", "a/c"]), Err(LayerError::Path(_))));
    }

    #[test]
    fn hard_links_share_an_inode_and_lead_to_files_of_the_layer_alone() {
        let (layer, _) = read(&["d/a", "b => d/a", "l -> nowhere", "m => l"]).unwrap();
        assert_eq!(find(&layer.tree, "b"), find(&layer.tree, "d/a"));
        assert_eq!(find(&layer.tree, "l"), find(&layer.tree, "m"));
        for entries in [["a => b", "b"], ["d/", "a => d"], ["x", "a => ../x"], ["x", "a => "]] {
            assert!(matches!(read(&entries), Err(LayerError::Link { .. })), "{entries:?}");
        }
    }

    #[test]
    fn layer_that_would_take_too_much_memory_is_refused() {
        let builder = |most_files, left| Builder { most_files, left, ..Builder::new() };
        for (mut builder, problem) in [(builder(3, 1000), "3 files"), (builder(9, 200), "bytes of names")] {
            let mut reader = Reader::new(&*stream(&["a", "b", "c/", "d"]).leak());
            let mut outcome = Ok(());
            while let (Ok(()), Some(entry)) = (&outcome, reader.next_entry().unwrap()) {
                outcome = builder.add(entry, Kind::Fifo);
            }
            assert!(outcome.unwrap_err().to_string().contains(problem), "{problem}");
        }
    }

    #[test]
    fn marks_remove_what_lower_layers_have() {
        assert_eq!(
            listed(&["d/.wh.a", "d/.wh.b", "d/b", ".wh.c", "c/e"]),
            ["c/!", "c/e", "d/", "d/a -", "d/b"]
        );
        assert_eq!(listed(&["d/f", "d/.wh..wh..opq", "d/.wh..wh.plnk"]), ["d/!", "d/f"]);
        assert_eq!(
            listed(&[".wh..wh.plnk/", ".wh..wh.plnk/1.2", "d/.wh.a => .wh..wh.aufs"]),
            ["d/", "d/a -"]
        );
        for mark in [".wh.", ".wh...", "a/.wh.."] {
            assert!(matches!(read(&[mark]), Err(LayerError::Path(_))), "{mark}");
        }
    }
}
