//! The directory `/proc` of a jail, in its mount namespace alone.
//!
//! ```text
//!   /proc                a tmpfs of root's
//!     processes          procfs with processes alone, and only those that the reader may trace
//!     self               -> processes/self
//!     cpuinfo, sys/kernel/random/boot_id      copies of the host's
//! ```
//!
//! The whole of procfs would show other tenants' load to the jail's user, and offer the host's settings
//! (`/proc/sys`) to one with the number 0.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, fchmod, fchown, mkdirat, openat, symlinkat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen, move_mount,
};
use rustix::process::{Gid, Uid};

use crate::failure::Failure;

/// Files of the host's `/proc` that volt-vmm reads. They change with a boot only.
const COPIED: [&str; 2] = ["cpuinfo", "sys/kernel/random/boot_id"];
/// Most bytes of a copy. The entry of one CPU has 2 KB at most.
const LONGEST: u64 = 4096;
/// Reading and searching, for all users.
const READABLE: Mode = Mode::from_raw_mode(0o555);
/// Directory of processes in `/proc`.
const PROCESSES: &str = "processes";

/// The content of a jail's `/proc` that comes from the host's.
pub(super) struct ProcFiles(Vec<(&'static str, Vec<u8>)>);

impl ProcFiles {
    /// Reads the start of the host's files, which of `cpuinfo` has the first CPU. One that cannot be read is
    /// left out.
    pub(super) fn read() -> Self {
        let read = |name| {
            let mut start = Vec::new();
            File::open(Path::new("/proc").join(name)).ok()?.take(LONGEST).read_to_end(&mut start).ok()?;
            Some((name, start))
        };
        Self(COPIED.into_iter().filter_map(read).collect())
    }

    /// Mounts `/proc` in this process's root, which is the jail's. Processes are those of its pid namespace.
    ///
    /// # Errors
    /// `/proc` in the jail is no directory, or the host refuses.
    pub(super) fn mount(&self) -> Result<(), Failure> {
        let mount = || {
            let tmpfs = new_mount(c"tmpfs", &[(c"mode", c"555"), (c"size", c"64k")])?;
            place(tmpfs.as_fd(), own_directory()?.as_fd())?;
            symlinkat("processes/self", &tmpfs, "self")?;
            for (name, content) in &self.0 {
                write(tmpfs.as_fd(), name, content)?;
            }
            // With hidepid=invisible, a user of the group 0 would see all processes.
            let processes = new_mount(c"proc", &[(c"hidepid", c"ptraceable"), (c"subset", c"pid")])?;
            Ok(place(processes.as_fd(), directory(tmpfs.as_fd(), PROCESSES)?.as_fd())?)
        };
        mount().map_err(|source: io::Error| Failure::system("mount /proc in the jail", source))
    }
}

/// Makes a file system that is mounted nowhere yet.
fn new_mount(kind: &CStr, options: &[(&CStr, &CStr)]) -> Result<OwnedFd, Errno> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        fsconfig_set_string(context.as_fd(), *key, *value)?;
    }
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

fn place(mount: BorrowedFd<'_>, at: BorrowedFd<'_>) -> Result<(), Errno> {
    let both = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, c"", at, c"", both)
}

/// Makes the directory `/proc` of the jail root's, which an earlier jail may have left, and opens it.
fn own_directory() -> io::Result<OwnedFd> {
    let root = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let own = directory(root.as_fd(), "proc")?;
    fchown(&own, Some(Uid::ROOT), Some(Gid::ROOT))?;
    Ok(own)
}

/// Makes a directory and opens it. One that exists is no error, a link is.
fn directory(above: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    match mkdirat(above, name, READABLE) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(above, name, flags, Mode::empty())?;
    // The umask may have taken bits.
    fchmod(&directory, READABLE)?;
    Ok(directory)
}

/// Writes a file that all may read, and makes the directories of its path.
fn write(above: BorrowedFd<'_>, path: &str, content: &[u8]) -> io::Result<()> {
    if let Some((name, rest)) = path.split_once('/') {
        return write(directory(above, name)?.as_fd(), rest, content);
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut file = File::from(openat(above, path, flags, Mode::RUSR)?);
    fchmod(&file, Mode::from_raw_mode(0o444))?;
    file.write_all(content)
}
