//! Layers of a few files, for tests.

use std::fs::File;
use std::os::unix::fs::FileExt;

use tar::{Builder, EntryType, Header};

use crate::layer::{Forget, Layer, LayerError};
use crate::tree::{InodeId, Kind, Tree};

/// A stream of entries: `PATH/` is a directory, `PATH -> TARGET` a symbolic link, `PATH => TARGET` a hard
/// link, and any other a file with its path as content.
pub(crate) fn stream(entries: &[&str]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for entry in entries {
        let mut header = Header::new_gnu();
        header.set_mode(0o640);
        header.set_uid(7);
        header.set_gid(8);
        header.set_mtime(9);
        let (path, kind, target) = match (entry.split_once(" -> "), entry.split_once(" => ")) {
            (Some((path, target)), _) => (path, EntryType::Symlink, target),
            (_, Some((path, target))) => (path, EntryType::Link, target),
            _ if entry.ends_with('/') => (*entry, EntryType::Directory, ""),
            _ => (*entry, EntryType::Regular, ""),
        };
        header.set_entry_type(kind);
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        let content = if kind == EntryType::Regular { path } else { "" };
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

/// Reads the layer of a stream, with its blob.
pub(crate) fn read(entries: &[&str]) -> Result<(Layer, File), LayerError> {
    let blob = memory(&[]);
    Layer::read(&*stream(entries), &blob, &mut Forget).map(|layer| (layer, blob))
}

/// A file in memory with this content.
pub(crate) fn memory(content: &[u8]) -> File {
    let fd = rustix::fs::memfd_create("blob", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let file = File::from(fd);
    file.write_all_at(content, 0).unwrap();
    file
}

/// Lists a tree: directories end with a slash, whiteouts with a minus, links have their target.
pub(crate) fn list(tree: &Tree) -> Vec<String> {
    let mut lines = Vec::new();
    let mut directories = vec![(String::new(), Tree::ROOT)];
    while let Some((path, directory)) = directories.pop() {
        let Kind::Directory(entries) = &tree.inode(directory).kind else { panic!("{path} is none") };
        for (name, id) in entries {
            let path = format!("{path}{}", String::from_utf8_lossy(name));
            let inode = tree.inode(*id);
            let is_opaque = inode.attributes.contains_key(crate::layer::marks::OPAQUE);
            lines.push(match &inode.kind {
                Kind::Directory(_) => format!("{path}/{}", if is_opaque { "!" } else { "" }),
                Kind::Symlink(target) => format!("{path} -> {}", String::from_utf8_lossy(target)),
                kind if *kind == crate::layer::marks::WHITEOUT => format!("{path} -"),
                _ => path.clone(),
            });
            if tree.is_directory(*id) {
                directories.push((format!("{path}/"), *id));
            }
        }
    }
    lines.sort();
    lines
}

/// Finds a file by its path.
pub(crate) fn find(tree: &Tree, path: &str) -> InodeId {
    path.split('/').fold(Tree::ROOT, |at, name| tree.entry(at, name.as_bytes()).unwrap())
}

/// Returns the content of a file of a layer, whose blob begins at the block `first`.
pub(crate) fn content(tree: &Tree, path: &str, first: u32, blob: &File) -> String {
    let Kind::File { size, block } = tree.inode(find(tree, path)).kind else { panic!("{path} is no file") };
    let mut bytes = vec![0; usize::try_from(size).unwrap()];
    blob.read_exact_at(&mut bytes, u64::from(block - first) * crate::erofs::BLOCK as u64).unwrap();
    String::from_utf8(bytes).unwrap()
}
