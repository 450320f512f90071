//! Lists the files below a directory.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, lgetxattr, llistxattr, major, minor};
use rustix::io::Errno;

use super::{Content, Directory, beneath};
use crate::erofs::is_possible_attribute;
use crate::error::{Error, Result};
use crate::tree::{Device, Inode, InodeId, Kind, Time, Tree};

/// Most bytes of the names of a file's attributes, and of the value of one, as for Linux.
const MOST: usize = 64 << 10;

/// Lists the files below an open directory, in the order of their names.
pub(super) fn walk(path: &Path, root: File) -> Result<Directory> {
    let found = root.metadata().map_err(Error::host("look at", path))?;
    let mut attributes = Attributes::default();
    // The path of the directory may be a symbolic link.
    let own = attributes.of(&shown(&root).join(".")).map_err(Error::host("read attributes of", path))?;
    let top = inode(&found, Kind::Directory(BTreeMap::new()), own);
    let mut directory =
        Directory { path: path.to_owned(), root, tree: Tree::new(top), contents: Vec::new(), blocks: 1 };
    // Hard links, by file system and inode.
    let mut known: HashMap<(u64, u64), InodeId> = HashMap::new();
    let mut next = vec![(PathBuf::new(), Tree::ROOT)];
    while let Some((below, id)) = next.pop() {
        let open = list(&directory.root, &below).map_err(Error::host("list", &path.join(&below)))?;
        for name in open.names {
            let (below, seen) = (below.join(&name), shown(&open.file).join(&name));
            let path = path.join(&below);
            let found = fs::symlink_metadata(&seen).map_err(Error::host("look at", &path))?;
            let key = (found.dev(), found.ino());
            let linked = known.get(&key).copied().filter(|_| !found.is_dir());
            let made = match linked {
                Some(linked) => linked,
                None => {
                    let of_it = attributes.of(&seen).map_err(Error::host("read attributes of", &path))?;
                    let kind = kind(&found, &seen).map_err(Error::host("read link", &path))?;
                    directory.tree.add(inode(&found, kind, of_it))
                }
            };
            directory.tree.link(id, name.as_bytes(), made);
            if linked.is_some() {
                continue;
            }
            if found.is_dir() {
                next.push((below, made));
                continue;
            }
            if found.nlink() > 1 {
                known.insert(key, made);
            }
            if let Kind::File { size, .. } = directory.tree.inode(made).kind {
                let block = directory.reserve(size)?;
                directory.tree.inode_mut(made).kind = Kind::File { size, block };
                directory.contents.push(Content { path: below, id: key, size, block });
            }
        }
    }
    Ok(directory)
}

/// An open directory.
struct Open {
    file: File,
    names: Vec<OsString>,
}

fn list(root: &File, below: &Path) -> io::Result<Open> {
    let file = beneath(root, below, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let entries = fs::read_dir(shown(&file))?.map(|entry| entry.map(|entry| entry.file_name()));
    let mut names = entries.collect::<io::Result<Vec<_>>>()?;
    names.sort_unstable();
    Ok(Open { file, names })
}

/// The path at which the kernel shows this process an open directory.
fn shown(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// The kind of a file; the block of a regular one is not known yet.
fn kind(found: &Metadata, path: &Path) -> io::Result<Kind> {
    let (kind, number) = (found.file_type(), found.rdev());
    let device = Device { major: major(number), minor: minor(number) };
    Ok(if kind.is_dir() {
        Kind::Directory(BTreeMap::new())
    } else if kind.is_symlink() {
        Kind::Symlink(fs::read_link(path)?.into_os_string().into_vec())
    } else if kind.is_block_device() {
        Kind::BlockDevice(device)
    } else if kind.is_char_device() {
        Kind::CharacterDevice(device)
    } else if kind.is_fifo() {
        Kind::Fifo
    } else if kind.is_socket() {
        Kind::Socket
    } else {
        Kind::File { size: found.len(), block: 0 }
    })
}

fn inode(found: &Metadata, kind: Kind, attributes: BTreeMap<Vec<u8>, Vec<u8>>) -> Inode {
    let modified =
        Time { seconds: found.mtime(), nanoseconds: u32::try_from(found.mtime_nsec()).unwrap_or_default() };
    let permissions = (found.mode() & 0o7777) as u16;
    Inode { kind, permissions, user: found.uid(), group: found.gid(), modified, attributes }
}

/// Reads extended attributes.
struct Attributes {
    names: Vec<u8>,
    value: Vec<u8>,
}

impl Default for Attributes {
    fn default() -> Self {
        Self { names: vec![0; MOST], value: vec![0; MOST] }
    }
}

impl Attributes {
    /// Those of a file that EROFS can have. A file system without attributes has none.
    fn of(&mut self, path: &Path) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let len = match llistxattr(path, &mut self.names[..]) {
            Err(Errno::NOTSUP) => 0,
            len => len?,
        };
        let mut found = BTreeMap::new();
        for name in self.names[..len].split(|byte| *byte == 0).filter(|name| is_possible_attribute(name)) {
            match lgetxattr(path, OsStr::from_bytes(name), &mut self.value[..]) {
                // It has gone meanwhile.
                Err(Errno::NODATA) => {}
                len => drop(found.insert(name.to_vec(), self.value[..len?].to_vec())),
            }
        }
        Ok(found)
    }
}
