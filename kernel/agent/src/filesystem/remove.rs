//! Removes entries with all below them.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, fstat, openat, unlinkat};
use rustix::io::Errno;

/// Removes an entry. It holds three descriptors and little stack, however deep a directory is.
pub fn remove(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    let name = CString::new(name.as_bytes())?;
    if !is_directory_left(parent, &name)? {
        return Ok(());
    }
    // The directories that are open, from the top, each with its name and its parent's number.
    let mut above: Vec<(CString, (u64, u64))> = Vec::new();
    let mut current = parent.try_clone_to_owned()?;
    let mut next = Some(name);
    loop {
        if let Some(name) = next.take() {
            let below = open(&current, &name)?;
            above.push((name, number(&current)?));
            current = below;
        }
        next = empty(&current)?;
        if next.is_some() {
            continue;
        }
        let Some((name, wanted)) = above.pop() else { return Ok(()) };
        // The kernel knows the way up, whatever the names are by now.
        let up = match above.is_empty() {
            true => parent.try_clone_to_owned()?,
            false => open(&current, c"..")?,
        };
        if number(&up)? != wanted {
            return Err(io::Error::other("another process moved a directory below it"));
        }
        match unlinkat(&up, &name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        if above.is_empty() {
            return Ok(());
        }
        current = up;
    }
}

/// Removes what is no directory. Returns the name of a directory if one is left.
fn empty(directory: &OwnedFd) -> io::Result<Option<CString>> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match is_directory_left(directory.as_fd(), name) {
            Ok(true) => return Ok(Some(name.to_owned())),
            Ok(false) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// Removes an entry unless it is a directory.
fn is_directory_left(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<bool> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) => Ok(false),
        Err(Errno::ISDIR) => Ok(true),
        Err(error) => Err(error),
    }
}

fn open(parent: &OwnedFd, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

/// The device and the inode.
fn number(directory: &OwnedFd) -> rustix::io::Result<(u64, u64)> {
    fstat(directory).map(|stat| (stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::scratch::{Scratch, in_small_thread};

    #[test]
    fn deep_tree_is_removed_on_a_small_stack_and_links_are_not_followed() {
        let scratch = Scratch::new();
        fs::create_dir(scratch.path("outside")).unwrap();
        fs::write(scratch.path("outside/file"), "").unwrap();
        let deep = scratch.deep("tree");
        for name in ["a", "b/c", "b/d"] {
            fs::create_dir_all(deep.join(name)).unwrap();
            fs::write(deep.join(name).join("file"), "").unwrap();
        }
        symlink(scratch.path("outside"), deep.join("link")).unwrap();
        let parent = OwnedFd::from(File::open(scratch.path("")).unwrap());
        in_small_thread(move || {
            remove(parent.as_fd(), OsStr::new("tree")).unwrap();
            let again = remove(parent.as_fd(), OsStr::new("tree")).unwrap_err();
            assert_eq!(again.kind(), io::ErrorKind::NotFound);
        });
        assert!(!scratch.path("tree").exists() && scratch.path("outside/file").exists());
    }
}
