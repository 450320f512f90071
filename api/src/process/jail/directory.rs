//! The root directory of a jail, its devices and its pid file.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, fchmod, fchown, makedev, mknodat, open};
use rustix::mount::mount_bind_recursive;
use rustix::process::{Gid, Uid};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use volt_vmm::internal::isolation::root;

use crate::failure::Failure;

/// Directories of a jail, which belong to its user.
const DIRECTORIES: [&str; 5] = ["/", "/dev", "/dev/net", "/run", "/tmp"];
/// Devices of a jail.
const DEVICES: [&str; 5] = ["/dev/null", "/dev/net/tun", "/dev/kvm", "/dev/urandom", "/dev/userfaultfd"];

/// The root directory of a jail.
pub(super) struct JailDirectory {
    path: PathBuf,
    owner: (Uid, Gid),
    /// The host's devices, with their numbers.
    devices: Vec<(&'static str, u64)>,
}

impl JailDirectory {
    /// Creates the directory `root` in the jail at `path`, and the directories above it. Other files that it
    /// has remain.
    ///
    /// # Errors
    /// The host refuses a directory.
    pub(super) fn create(path: &Path, owner: (u32, u32)) -> Result<Self, Failure> {
        let path = path.join("root");
        let created = DirBuilder::new().recursive(true).mode(0o755).create(&path);
        created.map_err(|source| Failure::system(format!("create {}", path.display()), source))?;
        let found = DEVICES.iter().filter_map(|name| Some((*name, fs::metadata(name).ok()?.rdev())));
        let devices = found.collect();
        Ok(Self { path, owner: (Uid::from_raw(owner.0), Gid::from_raw(owner.1)), devices })
    }

    /// Copies the program, so that two jails share no page of it. The copy belongs to root.
    ///
    /// # Errors
    /// The file exists: the id was used before. Or the host refuses.
    pub(super) fn copy_program(&self, program: &Path, name: &Path) -> Result<(), Failure> {
        let path = self.path.join(name);
        // The user of an earlier jail with this id may have left a link, so no existing file is written to.
        let create = || File::options().write(true).create_new(true).mode(0o755).open(&path);
        let copied = create().and_then(|mut copy| {
            fchmod(&copy, Mode::from_raw_mode(0o755))?;
            io::copy(&mut File::open(program)?, &mut copy)
        });
        let copied = copied.map_err(|source| match source.kind() {
            ErrorKind::AlreadyExists => {
                let act = format!("create {} for --exec-file", path.display());
                Failure::system(
                    act,
                    io::Error::other("a jail of this --id exists; remove it or use another id"),
                )
            }
            _ => Failure::system(format!("copy --exec-file to {}", path.display()), source),
        });
        copied.map(drop)
    }

    /// Makes the directory the root of this process, in a mount namespace of its own.
    ///
    /// # Errors
    /// The host refuses: the process lacks CAP_SYS_ADMIN.
    pub(super) fn enter(&self) -> Result<(), Failure> {
        let enter = || {
            unshare_mounts()?;
            root::keep_mounts_private()?;
            // A new root must be a mount point.
            mount_bind_recursive(&self.path, &self.path)?;
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            root::enter(open(&self.path, flags, Mode::empty())?.as_fd())
        };
        enter().map_err(|source| Failure::system(format!("make {} the root", self.path.display()), source))
    }

    /// Creates the directories and devices in the root, for the jail's user. The host may lack a device.
    ///
    /// # Errors
    /// A file of such a name exists, or the host refuses.
    pub(super) fn add_devices(&self) -> Result<(), Failure> {
        let of = |path: &'static str| {
            move |source: io::Error| Failure::system(format!("create {path} in the jail"), source)
        };
        for path in DIRECTORIES {
            self.add_directory(path).map_err(of(path))?;
        }
        for (path, number) in &self.devices {
            self.add_device(path, *number).map_err(of(path))?;
        }
        Ok(())
    }

    fn add_directory(&self, path: &str) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => created?,
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = open(path, flags, Mode::empty())?;
        fchmod(&directory, Mode::RWXU)?;
        Ok(fchown(&directory, Some(self.owner.0), Some(self.owner.1))?)
    }

    fn add_device(&self, path: &str, number: u64) -> io::Result<()> {
        let number = makedev(rustix::fs::major(number), rustix::fs::minor(number));
        mknodat(CWD, path, FileType::CharacterDevice, Mode::RUSR | Mode::WUSR, number)?;
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        Ok(rustix::fs::chownat(CWD, path, Some(self.owner.0), Some(self.owner.1), flags)?)
    }
}

fn unshare_mounts() -> rustix::io::Result<()> {
    // SAFETY: memory safety does not depend on the mount namespace.
    #[allow(unsafe_code)]
    unsafe {
        unshare_unsafe(UnshareFlags::NEWNS)
    }
}

/// Writes the file with the number of the program's process. Readers outside find it in the jail's root.
///
/// # Errors
/// The file exists, or the host refuses.
pub(super) fn write_pid(path: &Path, pid: u32) -> Result<(), Failure> {
    let write =
        || File::options().write(true).create_new(true).open(path)?.write_all(pid.to_string().as_bytes());
    write().map_err(|source| Failure::system(format!("write {} in the jail", path.display()), source))
}
