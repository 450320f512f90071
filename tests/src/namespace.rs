//! Another world for one child: a mount namespace in which a disk is small, or `/dev/kvm` is not what it was,
//! which goes with the child; or a network namespace ([`crate::network`]).
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

/// What is different in there.
#[derive(Clone, Debug)]
pub enum Namespace {
    /// At this directory lies a file system of this many KiB.
    SmallDisk(CString, CString),
    /// `/dev` is empty.
    WithoutKvm,
    /// `/dev/kvm` is root's alone, and the child is not root.
    KvmOfAnother,
    /// The network is this namespace's.
    Network(Arc<File>),
    /// Nothing.
    Same,
}

impl Namespace {
    /// A file system of this many KiB at `directory`.
    ///
    /// # Panics
    /// The path has a NUL in it.
    #[must_use]
    pub fn small_disk(directory: &Path, kib: u32) -> Self {
        let path = CString::new(directory.as_os_str().as_bytes()).expect("a path");
        Self::SmallDisk(path, CString::new(format!("size={kib}k")).expect("an option"))
    }

    /// Lets a command run in it.
    pub fn apply(&self, command: &mut Command) {
        let namespace = self.clone();
        // SAFETY: between fork and exec only system calls are made, on strings that exist already.
        unsafe { command.pre_exec(move || Ok(namespace.enter()?)) };
    }

    pub(crate) fn enter(&self) -> rustix::io::Result<()> {
        if let Self::Network(namespace) = self {
            return move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network));
        }
        // SAFETY: a new mount namespace changes nothing that memory safety rests on.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS)? };
        mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        let tmpfs = |place: &CStr, options: &CStr| {
            mount(c"tmpfs", place, c"tmpfs", MountFlags::empty(), Some(options))
        };
        match self {
            Self::Network(_) | Self::Same => Ok(()),
            Self::SmallDisk(directory, size) => tmpfs(directory, size),
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

/// Takes this thread to a mount namespace of its own, in which the host has the id of another boot. `file` is
/// where that id is put.
///
/// # Panics
/// The host refuses: the test must begin with `needs!(root)`.
pub(crate) fn boot_again(file: &Path) {
    std::fs::write(file, "5c0ffee5-0b00-4b1d-8f00-b00700000000\n").expect("write a boot id");
    // SAFETY: a new mount namespace changes nothing that memory safety rests on.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.expect("make a mount namespace");
    mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .expect("keep mounts apart");
    mount_bind(file, "/proc/sys/kernel/random/boot_id").expect("take another boot id");
}

/// Why no child can be put in a mount namespace here.
pub(crate) fn unavailable() -> Option<io::Error> {
    let mut command = Command::new("true");
    command.stdin(Stdio::null());
    Namespace::Same.apply(&mut command);
    command.status().err()
}
