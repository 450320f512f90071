//! Copies the files of a directory with all that their file system tells of them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use rustix::fs::{lgetxattr, llistxattr, lsetxattr, mknodat, utimensat};
use rustix::io::Errno;

/// Most bytes of the names of a file's attributes, and of the value of one, as for Linux.
const MOST: usize = 64 << 10;

/// Copies the content of a directory into another, which gets the owner, the mode and the attributes of the
/// first.
pub(super) fn directory(from: &Path, to: &Path) -> io::Result<()> {
    let mut copier = Copier { links: HashMap::new(), names: vec![0; MOST], value: vec![0; MOST] };
    // A path of a descriptor is a link, and its entry `.` is not.
    copier.below(&from.join("."), to)
}

struct Copier {
    /// Copies of files with several names, by file system and inode.
    links: HashMap<(u64, u64), PathBuf>,
    names: Vec<u8>,
    value: Vec<u8>,
}

impl Copier {
    fn below(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let to = to.join(entry.file_name());
            self.one(&entry.path(), &to).map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", Path::new(&entry.file_name()).display()))
            })?;
        }
        // The time of a directory changes with its entries.
        self.describe(from, &fs::symlink_metadata(from)?, to)
    }

    fn one(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let found = fs::symlink_metadata(from)?;
        if found.is_dir() {
            fs::create_dir(to)?;
            return self.below(from, to);
        }
        let key = (found.dev(), found.ino());
        if let Some(first) = self.links.get(&key) {
            return fs::hard_link(first, to);
        }
        if found.nlink() > 1 {
            self.links.insert(key, to.to_owned());
        }
        if found.is_symlink() {
            symlink(fs::read_link(from)?, to)?;
        } else if found.is_file() {
            io::copy(&mut File::open(from)?, &mut File::create_new(to)?)?;
        } else {
            let kind = FileType::from_raw_mode(found.mode());
            mknodat(CWD, to, kind, Mode::from_raw_mode(found.mode() & 0o7777), found.rdev())?;
        }
        self.describe(from, &found, to)
    }

    /// Gives a copy its owner, attributes, mode and times, in this order: a new owner takes set-user-ID and
    /// capabilities away.
    fn describe(&mut self, from: &Path, found: &Metadata, to: &Path) -> io::Result<()> {
        lchown(to, Some(found.uid()), Some(found.gid()))?;
        self.attributes(from, to)?;
        if !found.is_symlink() {
            fs::set_permissions(to, Permissions::from_mode(found.mode() & 0o7777))?;
        }
        let modified = Timespec { tv_sec: found.mtime(), tv_nsec: found.mtime_nsec() };
        let times = Timestamps { last_access: modified, last_modification: modified };
        Ok(utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn attributes(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let len = match llistxattr(from, &mut self.names[..]) {
            Err(Errno::NOTSUP) => return Ok(()),
            len => len?,
        };
        for name in self.names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let name = OsStr::from_bytes(name);
            let len = lgetxattr(from, name, &mut self.value[..])?;
            match lsetxattr(to, name, &self.value[..len], XattrFlags::empty()) {
                // The kernel may lack lists of access for this file system.
                Err(Errno::NOTSUP) => {}
                set => set?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{getxattr, setxattr};

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn copy_has_links_modes_times_and_attributes() {
        let scratch = Scratch::new();
        let (from, to) = (scratch.path("from"), scratch.path("to"));
        fs::create_dir_all(from.join("d/e")).unwrap();
        fs::create_dir(&to).unwrap();
        fs::write(from.join("d/a"), "content").unwrap();
        fs::hard_link(from.join("d/a"), from.join("b")).unwrap();
        symlink("/d/a", from.join("l")).unwrap();
        mknodat(CWD, from.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        fs::set_permissions(from.join("d/a"), Permissions::from_mode(0o4751)).unwrap();
        fs::set_permissions(&from, Permissions::from_mode(0o1777)).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(1_234_567_891);
        File::open(from.join("d")).unwrap().set_modified(time).unwrap();
        let has_attributes = setxattr(from.join("d/a"), "user.a", b"1", XattrFlags::empty()).is_ok();

        directory(&from, &to).unwrap();
        let found = |name: &str| fs::symlink_metadata(to.join(name)).unwrap();
        assert_eq!(fs::read(to.join("d/a")).unwrap(), b"content");
        assert_eq!((found("d/a").ino(), found("d/a").nlink()), (found("b").ino(), 2));
        assert_eq!(fs::read_link(to.join("l")).unwrap(), Path::new("/d/a"));
        assert_eq!(FileType::from_raw_mode(found("fifo").mode()), FileType::Fifo);
        assert_eq!((found("d/a").mode() & 0o7777, found("").mode() & 0o7777), (0o4751, 0o1777));
        assert_eq!(found("d").modified().unwrap(), time);
        assert!(found("d/e").is_dir());
        if has_attributes {
            assert_eq!(getxattr(to.join("d/a"), "user.a", &mut [0; 9][..]).unwrap(), 1);
        }
    }
}
