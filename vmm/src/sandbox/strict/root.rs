//! The root directory of a process that is alone in its mount namespace.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::CWD;
use rustix::io::Result;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, unmount,
};
use rustix::process::{chdir, fchdir, pivot_root};

/// Makes an empty directory, to which nothing can be written, the only one that the process can reach by a
/// path. Open descriptors stay usable.
///
/// # Errors
/// The kernel refuses. Then the process keeps its root.
pub fn enter_empty() -> Result<()> {
    let tmpfs = fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(tmpfs.as_fd(), c"mode", c"555")?;
    fsconfig_set_string(tmpfs.as_fd(), c"size", c"4k")?;
    fsconfig_create(tmpfs.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let root = fsmount(tmpfs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    keep_mounts_private()?;
    move_mount(root.as_fd(), c"", CWD, c"/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    enter(root.as_fd())
}

/// Ends the exchange of mounts with other mount namespaces.
///
/// # Errors
/// The kernel refuses.
pub fn keep_mounts_private() -> Result<()> {
    mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
}

/// Makes a directory at which a file system is mounted the root, and unmounts all else.
///
/// # Errors
/// The kernel refuses, for example because the old root is not a mount point.
pub fn enter(root: BorrowedFd<'_>) -> Result<()> {
    fchdir(root)?;
    // The old root then lies over the new one, and is the one that is unmounted.
    pivot_root(c".", c".")?;
    unmount(c".", UnmountFlags::DETACH)?;
    chdir(c"/")
}
