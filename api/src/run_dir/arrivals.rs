//! VMs with names that appear while a process runs, told by inotify(7).

use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use super::listing;
use super::root::RunRoot;
use super::vm_dir::VmDir;
use crate::failure::Failure;

/// A watch of the root. It is readable once a VM may have appeared.
#[derive(Debug)]
pub(crate) struct Arrivals {
    root: RunRoot,
    watch: OwnedFd,
    /// Ids of the VMs at the last look.
    known: HashSet<String>,
}

impl Arrivals {
    /// Begins to watch. Returns the VMs that are there, alive or ended.
    ///
    /// # Errors
    /// The host refuses the watch, or the root cannot be read.
    pub(crate) fn watch() -> Result<(Self, Vec<VmDir>), Failure> {
        Self::of(RunRoot::open()?)
    }

    fn of(root: RunRoot) -> Result<(Self, Vec<VmDir>), Failure> {
        let failed = |errno| Failure::run_dir(root.path(), format!("cannot watch it: {errno}"));
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(failed)?;
        let flags = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        inotify::add_watch(&watch, root.path(), flags).map_err(failed)?;
        let mut arrivals = Self { root, watch, known: HashSet::new() };
        let present = arrivals.take()?;
        Ok((arrivals, present))
    }

    /// Returns the VMs that have appeared since the last call, alive or ended.
    ///
    /// # Errors
    /// The root cannot be read.
    pub(crate) fn take(&mut self) -> Result<Vec<VmDir>, Failure> {
        // Before the look: what appears meanwhile is told again.
        while rustix::io::read(&self.watch, &mut [MaybeUninit::<u8>::uninit(); 4096]).is_ok() {}
        // Waits for the claim that made the directory.
        drop(self.root.lock()?);
        let all = listing::all(&self.root)?;
        let known = all.iter().map(|vm| vm.record.id.clone()).collect();
        let before = std::mem::replace(&mut self.known, known);
        Ok(all.into_iter().filter(|vm| !before.contains(&vm.record.id)).collect())
    }
}

impl AsFd for Arrivals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::run_dir::claim::Claim;
    use crate::run_dir::record::{NewRecord, Origin};
    use crate::run_dir::root::tests::scratch;

    fn claim(root: &RunRoot, name: &str) -> Claim {
        root.claim(Some(name.parse().unwrap()), NewRecord::of(Origin::Kernel("/k".to_owned()))).unwrap()
    }

    #[test]
    fn each_vm_arrives_once() {
        let (_dir, root) = scratch();
        let _web = claim(&root, "web");
        let (mut arrivals, present) = Arrivals::of(root.clone()).unwrap();
        let names = |vms: Vec<VmDir>| vms.iter().map(|vm| vm.name().to_string()).collect::<Vec<_>>();
        let is_ready = |arrivals: &Arrivals| {
            poll(&mut [PollFd::new(arrivals, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
        };
        assert_eq!(names(present), ["web"]);
        assert!(!is_ready(&arrivals));
        let (_a, b) = (claim(&root, "a"), claim(&root, "b"));
        assert!(is_ready(&arrivals));
        assert_eq!(names(arrivals.take().unwrap()), ["a", "b"]);
        assert!(!is_ready(&arrivals));
        drop(b);
        let _again = claim(&root, "b");
        assert_eq!(names(arrivals.take().unwrap()), ["b"], "another VM of the name");
    }
}
