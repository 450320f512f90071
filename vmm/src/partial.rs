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

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::error::{Error, Result};
use crate::paths;

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
    let make = |path: &Path| {
        paths::make_dir(path, 0o700)?;
        paths::open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW, 0).inspect_err(|_| {
            // Fails if a remover was faster.
            let _ = paths::remove_dir(path);
        })
    };
    create(parent, name, make, paths::remove_dir)
}

/// Creates a file in `parent`, and locks it. The lock lasts as long as the descriptor.
pub fn create_file(parent: &Path, name: &str, mode: u32) -> io::Result<(PathBuf, File)> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    create(parent, name, |path| paths::open(path, flags, mode), paths::remove_file)
}

fn create(
    parent: &Path,
    name: &str,
    make: impl Fn(&Path) -> io::Result<File>,
    unmake: impl Fn(&Path) -> io::Result<()>,
) -> io::Result<(PathBuf, File)> {
    for _ in 0..ATTEMPTS {
        let path = parent.join(format!(".{name}.{}{SUFFIX}", random_hex().map_err(io::Error::other)?));
        match make(&path) {
            Ok(file) => match claim(&file, &path) {
                Ok(true) => return Ok((path, file)),
                Ok(false) => {}
                Err(error) => {
                    let _ = unmake(&path);
                    return Err(error);
                }
            },
            Err(error)
                if error.kind() == ErrorKind::NotFound
                    && paths::metadata(parent).is_ok_and(|found| found.is_dir()) => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("other processes keep removing new files there"))
}

/// Locks a new file. Returns false if a remover found it before it was locked.
fn claim(file: &File, path: &Path) -> io::Result<bool> {
    Ok(lock(file)? != Lock::Taken && is_named(None, path, &file.metadata()?)?)
}

/// Removes this user's directories in `parent` that killed writers left. Files in them go too. A directory
/// with any other entry stays.
pub fn remove_abandoned_dirs(parent: &Path) {
    remove_abandoned(parent, Kind::Directory, |name| base_of(name).is_some_and(|base| !base.is_empty()));
}

/// Removes this user's files in `parent` that killed writers of `name` left.
pub fn remove_abandoned_files(parent: &Path, name: &str) {
    remove_abandoned(parent, Kind::File, |found| base_of(found) == Some(name.as_bytes()));
}

/// Removes this user's files in `parent` that killed writers left, whatever their name was to be.
#[cfg(any(feature = "internal", test))]
pub fn remove_all_abandoned_files(parent: &Path) {
    remove_abandoned(parent, Kind::File, |name| base_of(name).is_some_and(|base| !base.is_empty()));
}

/// Removes leftovers with best effort: nothing depends on it.
fn remove_abandoned(parent: &Path, kind: Kind, is_wanted: impl Fn(&[u8]) -> bool) {
    let Ok(directory) = paths::open(parent, OFlags::DIRECTORY, 0) else { return };
    let is_local = |found: rustix::fs::StatFs| LOCAL.contains(&(found.f_type as u64));
    if !rustix::fs::fstatfs(&directory).is_ok_and(is_local) {
        return;
    }
    let Ok(names) = paths::names_in(&directory) else { return };
    for name in names.into_iter().filter(|name| is_wanted(name.as_bytes())) {
        let place = parent.join(&name);
        match remove(directory.as_fd(), Path::new(&name), kind) {
            Ok(true) => log::info!("removed {}, which a killed process left", place.display()),
            Ok(false) => {}
            Err(error) => log::debug!("cannot remove {}: {error}", place.display()),
        }
    }
}

/// Removes an entry if it has this kind, is this user's, and has no living writer. Returns whether it was
/// removed.
fn remove(parent: BorrowedFd<'_>, name: &Path, kind: Kind) -> io::Result<bool> {
    let is_ours = |found: &Metadata| {
        let own = found.uid() == rustix::process::geteuid().as_raw();
        own && Kind::of(found) == Some(kind) && found.mode() & 0o077 == 0
    };
    // Checked before the open too, because opening a device can have effects.
    if !is_ours(&paths::metadata_at(Some(parent), name)?) {
        return Ok(false);
    }
    let file = paths::open_at(Some(parent), name, OFlags::NOFOLLOW | OFlags::NONBLOCK, 0)?;
    let opened = file.metadata()?;
    // An entry that was published or removed meanwhile has another name, or none.
    if !is_ours(&opened) || lock(&file)? != Lock::Held || !is_named(Some(parent), name, &opened)? {
        return Ok(false);
    }
    if kind == Kind::File {
        return paths::remove_at(Some(parent), name, false).map(|()| true);
    }
    let names = paths::names_in(&file)?;
    for name in &names {
        if !paths::metadata_at(Some(file.as_fd()), name.as_ref())?.is_file() {
            return Ok(false);
        }
    }
    names.iter().try_for_each(|name| paths::remove_at(Some(file.as_fd()), name.as_ref(), false))?;
    // Removes an empty directory only, even if the name is another directory's by now.
    paths::remove_at(Some(parent), name, true).map(|()| true)
}

/// Returns NAME of `.NAME.HEX.partial`.
fn base_of(name: &[u8]) -> Option<&[u8]> {
    let rest = name.strip_prefix(b".")?.strip_suffix(SUFFIX.as_bytes())?;
    let (base, hex) = rest.split_at_checked(rest.len().checked_sub(HEX)?)?;
    let is_hex = hex.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    base.strip_suffix(b".").filter(|_| is_hex)
}

/// Kind of a leftover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
}

impl Kind {
    fn of(found: &Metadata) -> Option<Self> {
        if found.is_dir() {
            return Some(Self::Directory);
        }
        found.is_file().then_some(Self::File)
    }
}

/// Result of an attempt to lock a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Lock {
    /// This process holds it now.
    Held,
    /// Another process holds the lock.
    Taken,
    /// The file system has no such locks.
    Unknown,
}

/// Locks a file. Only a file system without locks may leave a writer's file without one: a remover would take
/// it for a leftover.
pub fn lock(file: impl AsFd) -> io::Result<Lock> {
    match retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)) {
        Ok(()) => Ok(Lock::Held),
        Err(Errno::WOULDBLOCK) => Ok(Lock::Taken),
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK | Errno::INVAL | Errno::BADF) => Ok(Lock::Unknown),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether `name` in `parent` is still the opened file.
fn is_named(parent: Option<BorrowedFd<'_>>, name: &Path, opened: &Metadata) -> io::Result<bool> {
    match paths::metadata_at(parent, name) {
        Ok(found) => Ok((found.dev(), found.ino()) == (opened.dev(), opened.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
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
