//! Directories of tests, and descriptions of what is in them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{lgetxattr, llistxattr};

use super::content::extents;
use super::{Options, Owner, Source, unpack};

/// A directory that ends with its test.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("volt-tree-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An entry, without what depends on the place. Files of one inode have the path of the first of them.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Described {
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, i64),
    target: Option<PathBuf>,
    /// A hash, so that a difference is short.
    content: Option<u64>,
    extents: Vec<(u64, u64)>,
    xattrs: BTreeMap<String, u64>,
    same_as: Option<PathBuf>,
}

/// All entries below a directory, by path.
pub(super) fn described(root: &Path) -> BTreeMap<PathBuf, Described> {
    let mut found = BTreeMap::new();
    let mut inodes = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        let mut paths: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        for path in paths {
            let metadata = fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(root).unwrap().to_owned();
            let mut entry = Described {
                mode: metadata.mode(),
                owner: (metadata.uid(), metadata.gid()),
                mtime: (metadata.mtime(), metadata.mtime_nsec()),
                xattrs: if metadata.is_symlink() { BTreeMap::new() } else { xattrs(&path) },
                ..Described::default()
            };
            if metadata.is_dir() {
                pending.push(path);
            } else if metadata.is_symlink() {
                entry.target = Some(fs::read_link(&path).unwrap());
            } else if metadata.is_file() {
                entry.content = Some(hash(&fs::read(&path).unwrap()));
                let file = File::open(&path).unwrap();
                entry.extents = extents(file.as_fd(), metadata.len()).unwrap();
                let first = inodes.entry(metadata.ino()).or_insert_with(|| name.clone());
                entry.same_as = Some(first.clone()).filter(|_| metadata.nlink() > 1);
            }
            found.insert(name, entry);
        }
    }
    found
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

fn xattrs(path: &Path) -> BTreeMap<String, u64> {
    let mut names = vec![0; 4096];
    let length = llistxattr(path, &mut names[..]).unwrap();
    let names = names[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 4096];
        let length = lgetxattr(path, name, &mut value[..]).unwrap();
        hash(&value[..length])
    };
    names.map(|name| (String::from_utf8(name.to_vec()).unwrap(), value(name))).collect()
}

pub(super) const KEPT: Options<'static> = Options { name: None, owner: Owner::Kept };

/// The stream of a tree.
pub(super) fn packed(path: &Path) -> Vec<u8> {
    let mut stream = Vec::new();
    Source::open(path, false).unwrap().pack(&mut stream).unwrap();
    stream
}

/// Unpacks a stream. Returns the error's text and the warnings.
pub(super) fn unpacked(
    stream: &[u8],
    directory: &Path,
    options: &Options<'_>,
) -> (Result<(), String>, Vec<String>) {
    let mut warnings = Vec::new();
    let mut rest = stream;
    let result = unpack(&mut rest, directory, options, &mut |warning| warnings.push(warning.to_owned()));
    (result.map_err(|error| error.to_string()), warnings)
}
