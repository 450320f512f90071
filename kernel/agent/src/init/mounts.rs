//! The kernel's own file systems, and the directories that programs expect.

use std::fs::{DirBuilder, Permissions, create_dir_all, set_permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::volumes::mount_file_system;

/// A file system of the kernel: its type, directory and options.
struct Mount {
    kind: &'static str,
    path: &'static str,
    flags: MountFlags,
    options: &'static str,
}

const PLAIN: MountFlags = MountFlags::NOSUID.union(MountFlags::NOEXEC);
const NO_DEVICES: MountFlags = PLAIN.union(MountFlags::NODEV);

/// Mounted before the root file system, and moved there.
const FIRST: [Mount; 3] = [
    Mount { kind: "devtmpfs", path: "/dev", flags: MountFlags::NOSUID, options: "mode=0755" },
    Mount { kind: "proc", path: "/proc", flags: NO_DEVICES, options: "" },
    Mount { kind: "sysfs", path: "/sys", flags: NO_DEVICES, options: "" },
];
/// Mounted in the root file system. gid 5 is the group tty of all distributions.
const OTHERS: [Mount; 4] = [
    Mount { kind: "devpts", path: "/dev/pts", flags: PLAIN, options: "mode=0620,ptmxmode=0666,gid=5" },
    Mount { kind: "tmpfs", path: "/dev/shm", flags: NO_DEVICES, options: "mode=1777" },
    Mount { kind: "mqueue", path: "/dev/mqueue", flags: NO_DEVICES, options: "" },
    Mount { kind: "cgroup2", path: "/sys/fs/cgroup", flags: NO_DEVICES, options: "" },
];
const LINKS: [(&str, &str); 4] = [
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
];
/// Directories that an image without them gets. As in Docker, they keep their files over a restart.
const DIRECTORIES: [(&str, u32); 2] = [("/run", 0o755), ("/tmp", 0o1777)];

/// Paths of the first file systems, below the root.
pub(super) fn first_paths() -> impl Iterator<Item = &'static str> {
    FIRST.iter().map(|mount| mount.path)
}

/// Mounts the file systems that the search for disks needs.
pub(super) fn first() -> Result<(), String> {
    FIRST.iter().try_for_each(Mount::mount)
}

/// Mounts the other file systems. Returns the failures: a kernel may lack some.
pub(super) fn others() -> Vec<String> {
    let mounted = OTHERS.iter().filter_map(|mount| mount.mount().err());
    let linked = LINKS.iter().filter_map(|(target, path)| match symlink(target, path) {
        Err(error) if !Path::new(path).is_symlink() => Some(format!("cannot link {path}: {error}")),
        _ => None,
    });
    let made =
        DIRECTORIES.iter().filter_map(|(path, mode)| match DirBuilder::new().mode(*mode).create(path) {
            // The umask takes bits of the mode.
            Ok(()) => {
                let set = set_permissions(path, Permissions::from_mode(*mode));
                set.err().map(|error| format!("cannot set the mode of {path}: {error}"))
            }
            Err(_) if Path::new(path).exists() => None,
            Err(error) => Some(format!("cannot make {path}: {error}")),
        });
    mounted.chain(linked).chain(made).collect()
}

impl Mount {
    fn mount(&self) -> Result<(), String> {
        create_dir_all(self.path).map_err(|error| format!("cannot make {}: {error}", self.path))?;
        match mount_file_system(self.kind, self.path, self.kind, self.flags, self.options) {
            // The kernel mounts devtmpfs itself if it is set up so.
            Err(Errno::BUSY) => Ok(()),
            result => result.map_err(|error| format!("cannot mount {} on {}: {error}", self.kind, self.path)),
        }
    }
}
