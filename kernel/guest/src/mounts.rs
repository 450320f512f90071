//! The file systems that programs expect.

use crate::system;

/// Type, directory, and options.
const MOUNTS: [(&str, &str, &str); 6] = [
    ("devtmpfs", "/dev", "mode=0755"),
    ("proc", "/proc", ""),
    ("sysfs", "/sys", ""),
    ("cgroup2", "/sys/fs/cgroup", ""),
    ("tmpfs", "/tmp", "mode=1777"),
    ("tmpfs", "/run", "mode=0755"),
];

/// Mounts all file systems, and returns the failures. A file system that the kernel mounted before is none.
pub(crate) fn mount_all() -> Vec<String> {
    let mut problems = Vec::new();
    for (kind, path, options) in MOUNTS {
        let made = std::fs::create_dir_all(path);
        if let Err(error) = made.and_then(|()| system::mount(kind, path, kind, options))
            && error.raw_os_error() != Some(libc::EBUSY)
        {
            problems.push(format!("cannot mount {kind} on {path}: {error}"));
        }
    }
    problems
}
