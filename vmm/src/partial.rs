//! Unpublished directories and files, named `.NAME.HEX.partial` and locked (flock) while their writer lives.
//!
//! ```text
//!   create ──> lock ──> write ──> rename to NAME      a killed writer leaves the file without a lock
//!   next act in that directory ──> removes each file that it can lock and that still has its name
//! ```
//!
//! The kernel drops a lock with the last descriptor, however the process ends. The descriptors close at exec,
//! so no child keeps one. Leftovers stay on a file system that other hosts may share (NFS, 9p, virtiofs and
//! all that are not listed here). Its locks may be local to each host, so a leftover looks like a living
//! writer's file.

use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::{Errno, retry_on_intr};

use crate::error::{Error, Result};

/// Magic numbers (linux/magic.h) of file systems of one host, whose locks all writers see.
const LOCAL: [u64; 8] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0x0102_1994, // tmpfs
    0xf2f5_2010, // F2FS
    0x2fc1_2fc1, // ZFS
    0x794c_7630, // overlayfs
    0x8584_58f6, // ramfs
];

const SUFFIX: &str = ".partial";
const HEX: usize = 32;
/// Number of names to try. An attempt fails only if a remover finds the file before it is locked.
const ATTEMPTS: u32 = 100;

/// Creates a directory of mode 0700 in `parent`, and locks it. The lock lasts as long as the descriptor.
pub fn create_dir(parent: &Path, name: &str) -> io::Result<(PathBuf, File)> {
    let directory = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let make = |path: &Path| {
        DirBuilder::new().mode(0o700).create(path)?;
        let opened = retry_on_intr(|| rustix::fs::open(path, directory, Mode::empty()));
        opened.map(File::from).map_err(|errno| {
            // Fails if a remover was faster.
            let _ = rustix::fs::rmdir(path);
            io::Error::from(errno)
        })
    };
    create(parent, name, make, |path| rustix::fs::rmdir(path))
}

/// Creates a file in `parent` for writing, and locks it. The lock lasts as long as the descriptor.
pub fn create_file(parent: &Path, name: &str, mode: u32) -> io::Result<(PathBuf, File)> {
    let make = |path: &Path| File::options().write(true).create_new(true).mode(mode).open(path);
    create(parent, name, make, |path| rustix::fs::unlink(path))
}

fn create(
    parent: &Path,
    name: &str,
    make: impl Fn(&Path) -> io::Result<File>,
    unmake: impl Fn(&Path) -> rustix::io::Result<()>,
) -> io::Result<(PathBuf, File)> {
    for _ in 0..ATTEMPTS {
        let path = parent.join(format!(".{name}.{}{SUFFIX}", random_hex().map_err(io::Error::other)?));
        match make(&path) {
            Ok(file) => match claim(&file, &path) {
                Ok(true) => return Ok((path, file)),
                Ok(false) => {}
                Err(errno) => {
                    let _ = unmake(&path);
                    return Err(errno.into());
                }
            },
            Err(error) if error.kind() == ErrorKind::NotFound && parent.is_dir() => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("other processes keep removing new files there"))
}

/// Locks a new file. Returns false if a remover found it before it was locked.
fn claim(file: &File, path: &Path) -> rustix::io::Result<bool> {
    Ok(lock(file)? != Lock::Taken && is_named(CWD, path, &rustix::fs::fstat(file)?)?)
}

/// Removes this user's directories in `parent` that killed writers left. Files in them go too. A directory
/// with any other entry stays.
pub fn remove_abandoned_dirs(parent: &Path) {
    remove_abandoned(parent, FileType::Directory, |name| base_of(name).is_some_and(|base| !base.is_empty()));
}

/// Removes this user's files in `parent` that killed writers of `name` left.
pub fn remove_abandoned_files(parent: &Path, name: &str) {
    remove_abandoned(parent, FileType::RegularFile, |found| base_of(found) == Some(name.as_bytes()));
}

/// Removes leftovers with best effort: nothing depends on it.
fn remove_abandoned(parent: &Path, kind: FileType, is_wanted: impl Fn(&[u8]) -> bool) {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = rustix::fs::open(parent, flags, Mode::empty()) else { return };
    let is_local = |found: rustix::fs::StatFs| LOCAL.contains(&(found.f_type as u64));
    if !rustix::fs::fstatfs(&directory).is_ok_and(is_local) {
        return;
    }
    let Ok(entries) = Dir::read_from(&directory) else { return };
    for entry in entries.flatten().filter(|entry| is_wanted(entry.file_name().to_bytes())) {
        let name = Path::new(std::ffi::OsStr::from_bytes(entry.file_name().to_bytes()));
        match remove(directory.as_fd(), name, kind) {
            Ok(true) => log::info!("removed {}, which a killed process left", parent.join(name).display()),
            Ok(false) => {}
            Err(errno) => log::debug!("cannot remove {}: {errno}", parent.join(name).display()),
        }
    }
}

/// Removes an entry if it has this kind, is this user's, and has no living writer. Returns whether it was
/// removed.
fn remove(parent: BorrowedFd<'_>, name: &Path, kind: FileType) -> rustix::io::Result<bool> {
    let is_ours = |found: &Stat| {
        let own = found.st_uid == rustix::process::geteuid().as_raw();
        own && FileType::from_raw_mode(found.st_mode) == kind && found.st_mode & 0o077 == 0
    };
    // Checked before the open too, because opening a device can have effects.
    if !is_ours(&rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?) {
        return Ok(false);
    }
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let opened = rustix::fs::fstat(&file)?;
    // An entry that was published or removed meanwhile has another name, or none.
    if !is_ours(&opened) || lock(&file)? != Lock::Held || !is_named(parent, name, &opened)? {
        return Ok(false);
    }
    if kind != FileType::Directory {
        return rustix::fs::unlinkat(parent, name, AtFlags::empty()).map(|()| true);
    }
    let mut names = Vec::new();
    for entry in Dir::read_from(&file)? {
        let name = entry?.file_name().to_owned();
        if [&b"."[..], b".."].contains(&name.to_bytes()) {
            continue;
        }
        let found = rustix::fs::statat(&file, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Ok(false);
        }
        names.push(name);
    }
    names.iter().try_for_each(|name| rustix::fs::unlinkat(&file, name, AtFlags::empty()))?;
    // Removes an empty directory only, even if the name is another directory's by now.
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR).map(|()| true)
}

/// Returns NAME of `.NAME.HEX.partial`.
fn base_of(name: &[u8]) -> Option<&[u8]> {
    let rest = name.strip_prefix(b".")?.strip_suffix(SUFFIX.as_bytes())?;
    let (base, hex) = rest.split_at_checked(rest.len().checked_sub(HEX)?)?;
    let is_hex = hex.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    base.strip_suffix(b".").filter(|_| is_hex)
}

/// Result of an attempt to lock a file.
#[derive(Debug, PartialEq, Eq)]
enum Lock {
    Held,
    /// Another process holds the lock.
    Taken,
    /// The file system has no such locks.
    Unknown,
}

/// Locks a file. Only a file system without locks may leave a writer's file without one: a remover would take
/// it for a leftover.
fn lock(file: impl AsFd) -> rustix::io::Result<Lock> {
    match retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)) {
        Ok(()) => Ok(Lock::Held),
        Err(Errno::WOULDBLOCK) => Ok(Lock::Taken),
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK | Errno::INVAL | Errno::BADF) => Ok(Lock::Unknown),
        Err(errno) => Err(errno),
    }
}

/// Whether `name` in `parent` is still the opened file.
fn is_named(parent: BorrowedFd<'_>, name: &Path, opened: &Stat) -> rustix::io::Result<bool> {
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok((found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Returns 128 random bits as 32 hex digits.
///
/// # Errors
/// Returns an error if the host refuses random bytes.
pub fn random_hex() -> Result<String> {
    let mut bytes = [0u8; HEX / 2];
    rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())
        .map_err(|source| Error::host("get random bytes", source))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

#[cfg(test)]
#[path = "partial_tests.rs"]
mod tests;
