//! A directory of the host, packed as an EROFS file system.
//!
//! ```text
//! superblock | content of files, in whole blocks | metadata
//! ```
//!
//! Files are opened beneath the directory, and never through a symbolic link. A user who may write there can
//! thus add no file of another place.

mod content;
mod walk;

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};

use crate::erofs::{self, BLOCK, Refusal};
use crate::error::{Error, Result};
use crate::tree::Tree;

/// The files of a directory, with the places of their content in the packed file system.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    root: File,
    tree: Tree,
    contents: Vec<Content>,
    /// Blocks up to the end of the content.
    blocks: u32,
}

/// The content of a regular file.
#[derive(Debug)]
struct Content {
    /// Its path from the directory on.
    path: PathBuf,
    /// Its file system and inode.
    id: (u64, u64),
    size: u64,
    /// The first block.
    block: u32,
}

impl Directory {
    /// Lists the files of a directory and of those below it, mounted ones too. Special files keep their kind.
    /// Extended attributes that EROFS cannot have are left out.
    ///
    /// # Errors
    /// The host refuses a file, or the content exceeds 16 TiB.
    pub fn read(path: &Path) -> Result<Self> {
        let root = open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let root = root.map_err(|errno| Error::host("open directory", path)(errno.into()))?;
        walk::walk(path, root.into())
    }

    /// Returns the number of files, directories included.
    #[must_use]
    pub fn files(&self) -> usize {
        self.tree.len()
    }

    /// Writes the file system into an empty file. Holes stay holes.
    ///
    /// # Errors
    /// The host refuses a file, one has changed since it was listed, or EROFS cannot have one.
    pub fn write(&self, file: &File, identity: [u8; 16]) -> Result<()> {
        for content in &self.contents {
            let path = self.path.join(&content.path);
            let from = beneath(&self.root, &content.path, OFlags::RDONLY | OFlags::NONBLOCK);
            let from = from.map_err(Error::host("open", &path))?;
            let found = from.metadata().map_err(Error::host("look at", &path))?;
            let is_same = (found.dev(), found.ino()) == content.id && found.len() == content.size;
            let at = u64::from(content.block) * BLOCK as u64;
            let is_whole = is_same
                && content::copy(&from, file, at, content.size).map_err(Error::host("copy", &path))?;
            if !is_whole {
                return Err(Error::Changed(path));
            }
        }
        let refused = |source| Error::Tree { what: self.path.display().to_string(), source };
        let written = erofs::append(&self.tree, file, self.blocks, identity).map_err(refused)?;
        written.map_err(Error::host("write the packed", &self.path))
    }

    /// Reserves blocks for content. Returns the first.
    fn reserve(&mut self, size: u64) -> Result<u32> {
        let first = self.blocks;
        let end =
            u32::try_from(size.div_ceil(BLOCK as u64)).ok().and_then(|blocks| first.checked_add(blocks));
        let too_large = || Error::Tree { what: self.path.display().to_string(), source: Refusal::TooLarge };
        self.blocks = end.ok_or_else(too_large)?;
        Ok(first)
    }
}

/// Opens a file beneath a directory without following a symbolic link.
fn beneath(root: &File, path: &Path, flags: OFlags) -> std::io::Result<File> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)?.into())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileExt, PermissionsExt, symlink};

    use super::*;
    use crate::testing::{find, list, memory};
    use crate::tree::Kind;

    /// A directory that is removed on drop.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("volt-image-{}-{name}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn packed_directory_is_read_back() {
        let scratch = Scratch::new("packed");
        let path = |name: &str| scratch.0.join(name);
        fs::create_dir(path("d")).unwrap();
        fs::write(path("d/a"), "content").unwrap();
        fs::hard_link(path("d/a"), path("b")).unwrap();
        fs::write(path("empty"), "").unwrap();
        symlink("/d/a", path("l")).unwrap();
        fs::set_permissions(path("d/a"), fs::Permissions::from_mode(0o4751)).unwrap();
        let sparse = File::create(path("sparse")).unwrap();
        sparse.write_all_at(b"x", 3 << 20).unwrap();
        sparse.set_len(9 << 20).unwrap();

        let directory = Directory::read(&scratch.0).unwrap();
        assert_eq!(directory.files(), 6);
        let image = memory(&[]);
        directory.write(&image, [7; 16]).unwrap();
        assert!(image.metadata().unwrap().blocks() * 512 < 1 << 20);
        let tree = erofs::read(&image).unwrap();
        assert_eq!(list(&tree), ["b", "d/", "d/a", "empty", "l -> /d/a", "sparse"]);
        assert_eq!(find(&tree, "b"), find(&tree, "d/a"));
        let inode = tree.inode(find(&tree, "b"));
        assert_eq!(inode.permissions, 0o4751);
        let Kind::File { size: 7, block } = inode.kind else { panic!("{inode:?}") };
        let mut bytes = [0; 7];
        image.read_exact_at(&mut bytes, u64::from(block) * BLOCK as u64).unwrap();
        assert_eq!(&bytes, b"content");
    }

    #[test]
    fn file_that_changed_since_the_walk_is_refused() {
        let scratch = Scratch::new("changed");
        let file = scratch.0.join("file");
        let change: [fn(&Path); 3] = [
            |file| fs::write(file, "longer content").unwrap(),
            |file| {
                // The same size, and another file.
                fs::write(file.with_extension("new"), "content").unwrap();
                fs::rename(file.with_extension("new"), file).unwrap();
            },
            |file| {
                fs::remove_file(file).unwrap();
                symlink("/proc/version", file).unwrap();
            },
        ];
        for change in change {
            let _ = fs::remove_file(&file);
            fs::write(&file, "content").unwrap();
            let directory = Directory::read(&scratch.0).unwrap();
            change(&file);
            let error = directory.write(&memory(&[]), [7; 16]).unwrap_err().to_string();
            assert!(error.contains(file.to_str().unwrap()), "{error}");
        }
    }

    #[test]
    fn file_is_no_directory() {
        let scratch = Scratch::new("file");
        let file = scratch.0.join("file");
        fs::write(&file, "").unwrap();
        let error = Directory::read(&file).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot open directory {}", file.display()));
    }
}
