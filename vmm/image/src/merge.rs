//! Layers of an image as one tree.

use std::collections::HashMap;

use crate::layer::marks::{IMPLICIT, OPAQUE, WHITEOUT, without};
use crate::tree::{Inode, InodeId, Kind, Tree};

/// A layer, and where the content of its files lies.
#[derive(Clone, Copy, Debug)]
pub struct Placed<'a> {
    /// The layer's tree.
    pub tree: &'a Tree,
    /// The block of the image that is the layer's first one.
    pub first: u32,
}

/// Merges layers, the lowest first. The tree has nothing that a layer removes or hides, and no marks that say
/// so.
#[must_use]
pub fn merge(layers: &[Placed<'_>]) -> Tree {
    let mut merged = Tree::new(empty());
    layers.iter().for_each(|placed| put_over(&mut merged, *placed));
    merged
}

/// Puts a layer over what lower ones have made of an empty tree.
pub fn put_over(merged: &mut Tree, Placed { tree: layer, first }: Placed<'_>) {
    // Names that share an inode in the layer share one here.
    let mut known: HashMap<InodeId, InodeId> = HashMap::new();
    if layer.inode(Tree::ROOT).attributes.contains_key(OPAQUE) {
        merged.inode_mut(Tree::ROOT).kind = empty().kind;
    }
    describe(merged, Tree::ROOT, layer, Tree::ROOT);
    let mut directories = vec![(Tree::ROOT, Tree::ROOT)];
    while let Some((lower, upper)) = directories.pop() {
        let Kind::Directory(entries) = &layer.inode(upper).kind else { continue };
        for (name, id) in entries {
            let inode = layer.inode(*id);
            match &inode.kind {
                kind if *kind == WHITEOUT => drop(merged.unlink(lower, name)),
                Kind::Directory(_) => {
                    let is_opaque = inode.attributes.contains_key(OPAQUE);
                    let is_implicit = inode.attributes.contains_key(IMPLICIT);
                    let below = merged.entry(lower, name).filter(|below| merged.is_directory(*below));
                    // A lower directory that is hidden still describes one that is only in paths.
                    let below = below.filter(|_| !is_opaque || is_implicit);
                    if let Some(below) = below.filter(|_| is_opaque) {
                        merged.inode_mut(below).kind = empty().kind;
                    }
                    let here = below.unwrap_or_else(|| {
                        let made = merged.add(Inode { kind: empty().kind, ..without(inode.clone()) });
                        merged.link(lower, name, made);
                        made
                    });
                    describe(merged, here, layer, *id);
                    directories.push((here, *id));
                }
                kind => {
                    let kind = moved(kind, first);
                    let here =
                        *known.entry(*id).or_insert_with(|| merged.add(Inode { kind, ..inode.clone() }));
                    merged.link(lower, name, here);
                }
            }
        }
    }
}

/// Gives a directory what the layer says of it, unless the layer has it only in paths of others.
fn describe(merged: &mut Tree, here: InodeId, layer: &Tree, id: InodeId) {
    let inode = layer.inode(id);
    if !inode.attributes.contains_key(IMPLICIT) {
        let kind = std::mem::replace(&mut merged.inode_mut(here).kind, Kind::Fifo);
        *merged.inode_mut(here) = Inode { kind, ..without(inode.clone()) };
    }
}

fn moved(kind: &Kind, first: u32) -> Kind {
    match kind {
        Kind::File { size, block } => Kind::File { size: *size, block: block.saturating_add(first) },
        kind => kind.clone(),
    }
}

/// An empty directory of root.
fn empty() -> Inode {
    Inode::directory(0o755)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{content, find, list, read};

    #[test]
    fn upper_layers_replace_remove_and_hide() {
        let (low, low_blob) =
            read(&["a", "b", "d/", "d/x", "d/y", "o/x", "k/x", "f", "s/t/u", "h", "i => h"]).unwrap();
        let (high, high_blob) =
            read(&["a", ".wh.b", "d/.wh.x", "d/z", "o/.wh..wh..opq", "o/y", "k", "f/g", "s/t/v", "h"])
                .unwrap();
        let tree = merge(&[Placed { tree: &low.tree, first: 100 }, Placed { tree: &high.tree, first: 200 }]);
        let expected = [
            "a", "d/", "d/y", "d/z", "f/", "f/g", "h", "i", "k", "o/", "o/y", "s/", "s/t/", "s/t/u", "s/t/v",
        ];
        assert_eq!(list(&tree), expected);
        assert_eq!(content(&tree, "d/y", 100, &low_blob), "d/y");
        assert_eq!(content(&tree, "a", 200, &high_blob), "a");
        assert_ne!(find(&tree, "h"), find(&tree, "i"));
        assert_eq!(content(&tree, "i", 100, &low_blob), "h");
        // The higher layer has `d` only in paths.
        assert_eq!(tree.inode(find(&tree, "d")).user, 7);
    }

    #[test]
    fn hidden_directory_describes_one_that_is_only_in_paths() {
        let (low, _) = read(&["d/", "d/a", "e/", "e/a"]).unwrap();
        let (high, _) = read(&["d/.wh..wh..opq", "d/x", ".wh.e", "e/x"]).unwrap();
        let tree = merge(&[Placed { tree: &low.tree, first: 1 }, Placed { tree: &high.tree, first: 9 }]);
        assert_eq!(list(&tree), ["d/", "d/x", "e/", "e/x"]);
        let owner = |path| tree.inode(find(&tree, path)).user;
        assert_eq!((owner("d"), owner("e")), (7, 0));
    }

    #[test]
    fn hard_links_stay_together() {
        let (low, _) = read(&["x"]).unwrap();
        let (high, _) = read(&["a", "d/b => a"]).unwrap();
        let tree = merge(&[Placed { tree: &low.tree, first: 1 }, Placed { tree: &high.tree, first: 9 }]);
        assert_eq!(find(&tree, "a"), find(&tree, "d/b"));
    }

    #[test]
    fn no_layer_is_an_empty_tree() {
        assert_eq!(list(&merge(&[])), Vec::<String>::new());
    }
}
