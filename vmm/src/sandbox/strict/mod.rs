//! Strict confinement of a process: namespaces, an empty root and limits, besides filters and Landlock.
//!
//! ```text
//!   control group ── namespaces ── fork: keeper | VM's process ── join the group ── empty root ── limits
//! ```
//!
//! The opener is forked before and stays in the host's namespaces. Without root, this needs user namespaces.

pub mod cgroups;
#[cfg(any(test, feature = "internal"))]
pub mod job_control;
mod keeper;
pub mod limits;
pub mod namespaces;
pub mod root;

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::process;
use crate::error::{Error, Result};
use cgroups::{Cgroup, CgroupLimits};
use namespaces::Namespace;

/// Isolation of a process ([`super::Confinement::strict`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Isolation {
    /// Limits by a control group.
    pub limits: CgroupLimits,
    /// Whether the process enters an empty root. It then opens no file by a path, not even `/dev/kvm`.
    pub empty_root: bool,
}

/// Isolates this process, which has one thread. The caller goes on in a child, and the started process keeps
/// its number and becomes the child's keeper. The log names each part that the host refuses. A part that is
/// refused changes nothing.
///
/// # Errors
/// [`Error::Host`] if the host refuses a process or a limit; [`Error::File`] as [`namespaces::enter`].
pub(super) fn isolate(isolation: &Isolation) -> Result<()> {
    let Isolation { limits, empty_root } = isolation;
    let mut lacking = Vec::new();
    let name = format!("volt-vmm-{}", std::process::id());
    let mut group = Cgroup::create(&name, limits)
        .inspect_err(|error| lacking.push(format!("limits by a control group ({error})")))
        .ok();
    lacking.extend(group.iter_mut().flat_map(|group| std::mem::take(&mut group.refused)));
    // The cgroup namespace has the group as its root, so it comes after the group.
    let [before @ .., Namespace::Cgroup] = &Namespace::ALL else { unreachable!("it is the last") };
    let mut refused = namespaces::enter(before)?;
    let has_pid_namespace = !refused.iter().any(|(kind, _)| *kind == Namespace::Pid);
    if has_pid_namespace || group.is_some() {
        let removal = group.as_ref().and_then(removal_of);
        let removal = removal.as_ref().map(|(parent, name)| (parent, name.as_c_str()));
        keeper::fork(removal).map_err(|source| Error::host("start the VM's process", source))?;
    }
    if let Some(Err(error)) = group.as_ref().map(Cgroup::join) {
        lacking.push(format!("limits by a control group ({error})"));
        // The keeper removes it if this fails.
        let _ = group.take().map(Cgroup::remove);
    }
    refused.extend(namespaces::enter(&[Namespace::Cgroup])?);
    lacking
        .extend(refused.iter().map(|(kind, errno)| format!("a namespace of kind {} ({errno})", kind.name())));
    if *empty_root {
        process::keep_pagemap();
        lacking.extend(root::enter_empty().err().map(|errno| format!("an empty root ({errno})")));
    }
    limits::limit().map_err(|source| Error::host("limit the process's resources", source))?;
    limits::drop_capabilities().map_err(|source| Error::host("give up capabilities", source))?;
    if !lacking.is_empty() {
        log::warn!("strict confinement lacks what this host refuses: {}", lacking.join(", "));
    }
    Ok(())
}

/// Opens the parent of a group, for its removal.
fn removal_of(group: &Cgroup) -> Option<(OwnedFd, CString)> {
    let parent = group.directory.parent()?;
    let name = CString::new(group.directory.file_name()?.as_bytes()).ok()?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Some((rustix::fs::open(parent, flags, Mode::empty()).ok()?, name))
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use super::*;

    /// Calls `act` in a child with one thread and returns its exit status. `act` returns whether all is well.
    fn in_child(act: impl FnOnce() -> bool) -> i32 {
        let mut status = 0;
        // SAFETY: musl's fork releases the heap's locks in the child, which takes no other lock and ends by
        // _exit.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(if act() { 0 } else { 1 });
            }
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        }
        status
    }

    fn links() -> BTreeMap<&'static str, std::path::PathBuf> {
        let link = |kind: Namespace| fs::read_link(format!("/proc/self/ns/{}", kind.name()));
        Namespace::ALL.iter().filter_map(|kind| Some((kind.name(), link(*kind).ok()?))).collect()
    }

    fn has_user_namespaces() -> bool {
        let has = in_child(|| namespaces::enter(&[Namespace::User]).is_ok_and(|refused| refused.is_empty()));
        if has != 0 {
            crate::testing::skip("this host refuses user namespaces");
        }
        has == 0
    }

    #[test]
    fn process_enters_every_namespace_and_keeps_its_user() {
        if !has_user_namespaces() {
            return;
        }
        let before = links();
        let act = || {
            let user = rustix::process::geteuid();
            let refused = namespaces::enter(&Namespace::ALL).unwrap_or_default();
            refused.is_empty()
                && links().iter().all(|(kind, link)| *kind == "pid" || before.get(kind) != Some(link))
                && links().len() == before.len()
                && rustix::process::geteuid() == user
        };
        assert_eq!(in_child(act), 0);
        assert_eq!(links(), before, "the parent stays");
    }

    #[test]
    fn refused_namespace_is_named_and_the_others_are_entered() {
        if !has_user_namespaces() {
            return;
        }
        let before = links();
        let act = || {
            // The limit of a user namespace holds for those within.
            namespaces::enter(&[Namespace::User]).is_ok()
                && fs::write("/proc/sys/user/max_net_namespaces", "0").is_ok()
                && namespaces::enter(&Namespace::ALL)
                    .is_ok_and(|refused| refused == [(Namespace::Network, rustix::io::Errno::NOSPC)])
                && links()["uts"] != before["uts"]
                && links()["net"] == before["net"]
        };
        assert_eq!(in_child(act), 0);
    }

    #[test]
    fn process_without_the_right_to_namespaces_stays_where_it_is() {
        let before = links();
        let act = || {
            rustix::process::geteuid().is_root()
                && limits::drop_capabilities().is_ok()
                && namespaces::enter(&Namespace::ALL).is_ok_and(|refused| refused.len() == 7)
                && links() == before
        };
        if rustix::process::geteuid().is_root() {
            assert_eq!(in_child(act), 0);
        }
    }

    #[test]
    fn empty_root_hides_every_file_and_keeps_open_ones() {
        if !has_user_namespaces() {
            return;
        }
        let file = fs::File::open("/proc/self/status").unwrap();
        let act = || {
            namespaces::enter(&[Namespace::User, Namespace::Mount]).is_ok()
                && root::enter_empty().is_ok()
                && fs::read_dir("/").is_ok_and(|entries| entries.count() == 0)
                && fs::read_dir("..").is_ok_and(|entries| entries.count() == 0)
                && fs::metadata("/proc").is_err()
                && fs::write("/file", "").is_err()
                && limits::drop_capabilities().is_ok()
                && rustix::mount::mount_remount("/", rustix::mount::MountFlags::empty(), c"").is_err()
                && file.metadata().is_ok()
        };
        assert_eq!(in_child(act), 0);
        assert!(fs::metadata("/proc/self").is_ok(), "the parent keeps its root");
    }

    #[test]
    fn keeper_passes_on_signals_and_ends_as_the_child_did() {
        let status = in_child(|| keeper::fork(None).is_ok() && rustix::process::getppid().is_some());
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status}");
        let status = in_child(|| keeper::fork(None).is_err());
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1, "{status}");
        let killed = in_child(|| {
            // SAFETY: ends the process.
            keeper::fork(None).is_err() || unsafe { libc::kill(libc::getpid(), libc::SIGKILL) } != 0
        });
        assert!(libc::WIFSIGNALED(killed) && libc::WTERMSIG(killed) == libc::SIGKILL, "{killed}");
        let passed_on = in_child(|| {
            // SAFETY: the parent is the keeper, which passes the signal on to this process.
            keeper::fork(None).is_err()
                || unsafe { libc::kill(libc::getppid(), libc::SIGTERM) != 0 || libc::pause() == 0 }
        });
        assert!(libc::WIFSIGNALED(passed_on) && libc::WTERMSIG(passed_on) == libc::SIGTERM, "{passed_on}");
    }

    #[test]
    fn capabilities_and_message_queues_are_gone() {
        let act = || {
            limits::limit().is_ok()
                && limits::drop_capabilities().is_ok()
                && rustix::thread::capabilities(None).is_ok_and(|sets| {
                    sets.effective.is_empty() && sets.permitted.is_empty() && sets.inheritable.is_empty()
                })
                && rustix::process::getrlimit(rustix::process::Resource::Msgqueue).maximum == Some(0)
                && rustix::process::getrlimit(rustix::process::Resource::Nofile)
                    .maximum
                    .is_some_and(|files| files <= 16384)
        };
        assert_eq!(in_child(act), 0);
    }
}
