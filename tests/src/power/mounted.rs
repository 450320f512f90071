//! Mounts and unmounts of file systems.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::patience::wait_until;

/// Mounts an ext4 file system.
pub(super) fn mount_ext4(device: &Path, place: &Path) {
    wait_until("the block device has its node", || fs::metadata(device).is_ok_and(|found| found.rdev() != 0));
    mount(device, place, "ext4", MountFlags::NOATIME, None)
        .unwrap_or_else(|error| panic!("mount {} at {}: {error}", device.display(), place.display()));
}

/// Unmounts a file system that a process may still hold for a moment after its end.
pub(super) fn unmount_from(place: &Path) {
    wait_until("no process holds the file system", || match unmount(place, UnmountFlags::empty()) {
        Ok(()) => true,
        Err(rustix::io::Errno::BUSY) => false,
        Err(error) => panic!("unmount {}: {error}", place.display()),
    });
}

/// Unmounts on drop, even after a panic.
pub(super) struct Unmounted<'a>(&'a Path);

impl<'a> Unmounted<'a> {
    pub(super) fn at(place: &'a Path) -> Self {
        Self(place)
    }
}

impl Drop for Unmounted<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = unmount(self.0, UnmountFlags::DETACH);
        } else {
            unmount_from(self.0);
        }
    }
}
