//! Namespaces of a process (namespaces(7)). Without root, the user namespace gives the right to make the
//! others.
#![allow(unsafe_code)]

use std::fs;

use rustix::io::Errno;
use rustix::process::{getegid, geteuid};
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities, unshare_unsafe};

use crate::error::{Error, Result};

/// A kind of namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// Users and capabilities.
    User,
    /// Mounted file systems.
    Mount,
    /// Process ids. Children of the process enter it, and the process itself does not.
    Pid,
    /// Network devices, addresses, ports and abstract sockets.
    Network,
    /// System V and POSIX queues, semaphores and shared memory.
    Ipc,
    /// The host's name.
    Uts,
    /// Paths of control groups.
    Cgroup,
}

impl Namespace {
    /// All kinds.
    pub const ALL: [Self; 7] =
        [Self::User, Self::Mount, Self::Pid, Self::Network, Self::Ipc, Self::Uts, Self::Cgroup];

    /// Returns the name of the kind, as in `/proc/PID/ns`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Mount => "mnt",
            Self::Pid => "pid",
            Self::Network => "net",
            Self::Ipc => "ipc",
            Self::Uts => "uts",
            Self::Cgroup => "cgroup",
        }
    }

    fn flag(self) -> UnshareFlags {
        match self {
            Self::User => UnshareFlags::NEWUSER,
            Self::Mount => UnshareFlags::NEWNS,
            Self::Pid => UnshareFlags::NEWPID,
            Self::Network => UnshareFlags::NEWNET,
            Self::Ipc => UnshareFlags::NEWIPC,
            Self::Uts => UnshareFlags::NEWUTS,
            Self::Cgroup => UnshareFlags::NEWCGROUP,
        }
    }
}

/// Moves this process, which has one thread and is dumpable, to new namespaces of the `wanted` kinds, of
/// which the user namespace comes first. In that it keeps its user and group, and has all capabilities.
/// Returns the kinds that the host refuses, with its answers.
///
/// # Errors
/// [`Error::File`] if the host makes a user namespace and refuses the process its user or group in it.
pub fn enter(wanted: &[Namespace]) -> Result<Vec<(Namespace, Errno)>> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let all = wanted.iter().fold(UnshareFlags::empty(), |flags, kind| flags | kind.flag());
    let mut refused = Vec::new();
    let may_keep_ids = may_map(user);
    if !may_keep_ids || unshare(all).is_err() {
        for &kind in wanted {
            if kind == Namespace::User && !may_keep_ids {
                refused.push((kind, Errno::PERM));
                continue;
            }
            // Some hosts make a user namespace without capabilities. A second namespace fails there, and
            // then the kernel makes neither.
            let second = if kind == Namespace::User { UnshareFlags::NEWUTS } else { UnshareFlags::empty() };
            refused.extend(unshare(kind.flag() | second).err().map(|errno| (kind, errno)));
        }
    }
    if wanted.contains(&Namespace::User) && !refused.iter().any(|(kind, _)| *kind == Namespace::User) {
        keep_ids(user, group)?;
    }
    Ok(refused)
}

fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: none of the flags ends the sharing of descriptors or memory between threads.
    unsafe { unshare_unsafe(flags) }
}

/// Whether the kernel lets this process have its user in a user namespace. A root that lost capabilities may
/// not (Linux 5.12): it would be alone in a namespace without a user.
fn may_map(user: u32) -> bool {
    user != 0 || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SETFCAP))
}

/// Gives the process its user and group in its new user namespace.
fn keep_ids(user: u32, group: u32) -> Result<()> {
    let write = |name: &str, text: &str| {
        fs::write(name, text).map_err(|source| Error::File { act: "write", name: name.to_owned(), source })
    };
    write("/proc/self/uid_map", &format!("{user} {user} 1"))?;
    // A process without privileges must give up setgroups(2) before it maps a group.
    write("/proc/self/setgroups", "deny")?;
    write("/proc/self/gid_map", &format!("{group} {group} 1"))
}
