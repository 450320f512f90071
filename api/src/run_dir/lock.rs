//! The lock that tells whether a VM lives: a write lock of an open file description (`F_OFD_SETLK` of
//! fcntl(2)).
//!
//! The kernel releases it with the last descriptor, so with the last process of the VM. A query does not take
//! it, so a reader never makes a claim fail. A waiter takes a read lock for a moment, which no query counts.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// A byte of the lock's file. A VM lives if one is locked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// Held by the process that claimed the name, until the VM runs.
    Claim = 0,
    /// Held by the VM's process.
    Life = 1,
}

/// Locks a part until all descriptors of this opening are closed. Returns false if another opening holds it.
pub(super) fn hold(file: &File, part: Part) -> io::Result<bool> {
    match control(file, libc::F_OFD_SETLK, libc::F_WRLCK, Some(part)) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether another opening holds a part.
pub(super) fn is_held(file: &File) -> io::Result<bool> {
    Ok(control(file, libc::F_OFD_GETLK, libc::F_RDLCK, None)? != libc::F_UNLCK)
}

/// Waits until no other opening holds a part.
pub(super) fn wait_free(file: &File) -> io::Result<()> {
    loop {
        match control(file, libc::F_OFD_SETLKW, libc::F_RDLCK, None) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            waited => {
                waited?;
                return control(file, libc::F_OFD_SETLK, libc::F_UNLCK, None).map(drop);
            }
        }
    }
}

/// Makes the call for a part, or for the whole file. Returns the kind of lock that it found.
fn control(file: &File, command: i32, kind: i32, part: Option<Part>) -> io::Result<i32> {
    // SAFETY: flock consists of integers. A length of 0 means the whole file, and the pid must be 0.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    if let Some(part) = part {
        (lock.l_start, lock.l_len) = (part as libc::off_t, 1);
    }
    // SAFETY: the command takes a flock, which lives during the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } {
        0.. => Ok(lock.l_type.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::testing::Dir;

    fn open(path: &std::path::Path) -> File {
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }

    #[test]
    fn lock_is_told_without_being_taken_and_released_with_its_file() {
        let dir = Dir::new();
        let path = dir.path("lock");
        let (holder, other) = (open(&path), open(&path));
        assert!(!is_held(&other).unwrap());
        assert!(hold(&holder, Part::Life).unwrap());
        assert!(is_held(&other).unwrap() && !hold(&other, Part::Life).unwrap());
        assert!(hold(&other, Part::Claim).unwrap() && is_held(&holder).unwrap());
        let twin = holder.try_clone().unwrap();
        drop(holder);
        assert!(is_held(&other).unwrap(), "a second descriptor keeps it");
        drop(twin);
        assert!(!is_held(&other).unwrap());
        wait_free(&other).unwrap();
    }

    #[test]
    fn waiters_do_not_make_a_vm_look_alive() {
        let dir = Dir::new();
        let path = dir.path("lock");
        let (waiter, other) = (open(&path), open(&path));
        control(&waiter, libc::F_OFD_SETLK, libc::F_RDLCK, None).unwrap();
        assert!(!is_held(&other).unwrap());
    }
}
