//! Freezes the file systems that are on disks: all that was written is on the disk, and further writes wait.
#![allow(unsafe_code)]

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, fstat, open};

use crate::volumes::mounted::{self, Mounted};

/// `FIFREEZE` of linux/fs.h.
const FREEZE: libc::Ioctl = 0xc004_5877_u32 as libc::Ioctl;
/// `FITHAW` of linux/fs.h.
const THAW: libc::Ioctl = 0xc004_5878_u32 as libc::Ioctl;

/// Whether a freeze has begun that no thaw has ended. It is in the agent's memory, and so in a snapshot, too.
static MAY_BE_FROZEN: AtomicBool = AtomicBool::new(false);

/// A directory of a file system, and its name for a person.
type Found = (String, OwnedFd);

/// Freezes all file systems on disks. `upper` is a directory of the one with the root's changes, whose mount
/// has no path. Those that stand still already, and those that cannot be frozen, such as EROFS, stay as they
/// are.
///
/// # Errors
/// The kernel refuses. No file system is frozen then by this call.
pub fn freeze(upper: Option<BorrowedFd<'_>>) -> Result<(), String> {
    MAY_BE_FROZEN.store(true, Ordering::SeqCst);
    let mut frozen: Vec<OwnedFd> = Vec::new();
    // A file system in a file of another one comes before that.
    for (name, directory) in on_disks(upper)?.into_iter().rev() {
        match control(&directory, FREEZE).map_err(|error| (error.raw_os_error(), error)) {
            Ok(()) => frozen.push(directory),
            Err((Some(libc::EBUSY | libc::EOPNOTSUPP), _)) => {}
            Err((_, error)) => {
                frozen.iter().rev().for_each(|directory| drop(control(directory, THAW)));
                return Err(format!("cannot freeze the file system of {name}: {error}"));
            }
        }
    }
    Ok(())
}

/// Thaws all file systems on disks.
///
/// # Errors
/// The kernel refuses. The others are thawed.
pub fn thaw(upper: Option<BorrowedFd<'_>>) -> Result<(), String> {
    let mut first = Ok(());
    for (name, directory) in on_disks(upper)? {
        match control(&directory, THAW) {
            // It is not frozen.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {}
            Err(error) => {
                first = first.and(Err(format!("cannot thaw the file system of {name}: {error}")));
            }
            Ok(()) => {}
        }
    }
    if first.is_ok() {
        MAY_BE_FROZEN.store(false, Ordering::SeqCst);
    }
    first
}

/// Thaws all file systems on disks, if this agent has frozen them. A wake that has nothing to thaw makes no
/// system call for it.
///
/// # Errors
/// As [`thaw`].
pub fn thaw_if_frozen(upper: Option<BorrowedFd<'_>>) -> Result<(), String> {
    if MAY_BE_FROZEN.load(Ordering::SeqCst) { thaw(upper) } else { Ok(()) }
}

/// Opens a directory of each file system on a disk, those first that others may be in. A directory of FUSE is
/// not opened: its program may be frozen.
fn on_disks(upper: Option<BorrowedFd<'_>>) -> Result<Vec<Found>, String> {
    let upper = upper.map(|upper| upper.try_clone_to_owned()).transpose();
    let upper = upper.map_err(|error| format!("cannot use the upper's directory: {error}"))?;
    let upper = upper.into_iter().map(|upper| ("the root's changes".to_owned(), upper));
    let is_on_disk = |mount: &Mounted| {
        mount.source.starts_with(b"/") && !mount.source.starts_with(b"//") && !mount.kind.starts_with("fuse")
    };
    let others = mounted::all().into_iter().filter(is_on_disk);
    // A mount point that is a file, or of a program that has just unmounted it, is left out.
    let others = others.filter_map(|mount| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let directory = open(mount.path.as_slice(), flags, Mode::empty()).ok()?;
        Some((String::from_utf8_lossy(&mount.path).into_owned(), directory))
    });
    // The oldest mount of each: a bind mount is newer than a file system in a file of its disk, perhaps.
    let mut disks = HashSet::new();
    let is_first = |(_, directory): &Found| fstat(directory).is_ok_and(|found| disks.insert(found.st_dev));
    Ok(upper.chain(others).filter(is_first).collect())
}

fn control(directory: impl AsFd, request: libc::Ioctl) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the kernel ignores the argument of both calls.
    match unsafe { libc::ioctl(directory.as_fd().as_raw_fd(), request, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
