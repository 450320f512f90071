//! Namespaces for one child: a mount namespace with a small disk or another `/dev/kvm`, or a network
//! namespace ([`crate::network`]).
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::process::{Gid, Uid};
use rustix::thread::{
    LinkNameSpaceType, UnshareFlags, move_into_link_name_space, set_thread_gid, set_thread_groups,
    set_thread_uid, unshare_unsafe,
};

/// `/dev/kvm` is misc device 232 on every Linux.
const KVM_DEVICE: (u32, u32) = (10, 232);
const NOBODY: u32 = 65534;

/// The difference from the host.
#[derive(Clone, Debug)]
pub enum Namespace {
    /// A file system of this many KiB at this directory.
    SmallDisk(CString, CString),
    /// The first directory is in place of the second.
    Replaced(CString, CString),
    /// `/dev` is empty.
    WithoutKvm,
    /// Only root can open `/dev/kvm`, and the child is not root.
    KvmOfAnother,
    /// A network namespace.
    Network(Arc<File>),
    /// No difference.
    Same,
}

impl Namespace {
    /// Mounts a file system of this many KiB at `directory`.
    ///
    /// # Panics
    /// The path has a NUL in it.
    #[must_use]
    pub fn small_disk(directory: &Path, kib: u32) -> Self {
        let path = CString::new(directory.as_os_str().as_bytes()).expect("a path");
        Self::SmallDisk(path, CString::new(format!("size={kib}k")).expect("an option"))
    }

    /// Puts `directory` in place of `place`.
    ///
    /// # Panics
    /// A path has a NUL in it.
    #[must_use]
    pub fn replaced(place: &Path, directory: &Path) -> Self {
        let path = |path: &Path| CString::new(path.as_os_str().as_bytes()).expect("a path");
        Self::Replaced(path(directory), path(place))
    }

    /// Runs a command in the namespace.
    pub fn apply(&self, command: &mut Command) {
        let namespace = self.clone();
        // SAFETY: between fork and exec only system calls are made, on existing strings.
        unsafe { command.pre_exec(move || Ok(namespace.enter()?)) };
    }

    pub(crate) fn enter(&self) -> rustix::io::Result<()> {
        if let Self::Network(namespace) = self {
            return move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network));
        }
        // SAFETY: memory safety does not depend on the mount namespace.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS)? };
        mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        let tmpfs = |place: &CStr, options: &CStr| {
            mount(c"tmpfs", place, c"tmpfs", MountFlags::empty(), Some(options))
        };
        match self {
            Self::Network(_) | Self::Same => Ok(()),
            Self::SmallDisk(directory, size) => tmpfs(directory, size),
            Self::Replaced(directory, place) => mount_bind(directory.as_c_str(), place.as_c_str()),
            Self::WithoutKvm => tmpfs(c"/dev", c""),
            Self::KvmOfAnother => {
                tmpfs(c"/dev", c"mode=755")?;
                let (major, minor) = KVM_DEVICE;
                let owner_only = Mode::RUSR | Mode::WUSR;
                mknodat(CWD, c"/dev/kvm", FileType::CharacterDevice, owner_only, makedev(major, minor))?;
                set_thread_groups(&[])?;
                set_thread_gid(Gid::from_raw(NOBODY))?;
                set_thread_uid(Uid::from_raw(NOBODY))
            }
        }
    }
}

/// Moves this thread to a mount namespace with another boot id, which is written to `file`.
///
/// # Panics
/// The host refuses: the test must begin with `needs!(root)`.
pub(crate) fn enter_other_boot(file: &Path) {
    std::fs::write(file, "5c0ffee5-0b00-4b1d-8f00-b00700000000\n").expect("write a boot id");
    // SAFETY: memory safety does not depend on the mount namespace.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.expect("make a mount namespace");
    mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .expect("keep mounts apart");
    mount_bind(file, "/proc/sys/kernel/random/boot_id").expect("take another boot id");
}

/// Tells why a child cannot have a mount namespace here.
pub(crate) fn unavailable() -> Option<io::Error> {
    let mut command = Command::new("true");
    command.stdin(Stdio::null());
    Namespace::Same.apply(&mut command);
    command.status().err()
}
