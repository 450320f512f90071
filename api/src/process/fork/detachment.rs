//! The moment from which the children of a fork are independent of their parent: one byte in a pipe that all
//! children share and none reads. All children see it, or none does, also if the parent dies then.
#![allow(unsafe_code)]

use std::io::{self, PipeReader, PipeWriter, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd, retry_on_intr};
use volt_vmm::internal::paths::DESCRIPTOR;

/// The parent's end. Without [`Detachment::detach_all`] its drop ends the children, as the end of the parent
/// does.
#[derive(Debug)]
pub(crate) struct Detachment {
    near: PipeWriter,
    far: PipeReader,
}

impl Detachment {
    /// # Errors
    /// The host refuses a pipe.
    pub(crate) fn new() -> io::Result<Self> {
        let (far, near) = io::pipe()?;
        Ok(Self { near, far })
    }

    /// Returns the end of a child, which it must get as its descriptor [`DESCRIPTOR`].
    ///
    /// # Errors
    /// The host refuses a descriptor.
    pub(crate) fn of_child(&self) -> io::Result<OwnedFd> {
        Ok(self.far.try_clone()?.into())
    }

    /// Detaches all children at once.
    ///
    /// # Errors
    /// The host refuses. Then no child is detached.
    pub(crate) fn detach_all(mut self) -> io::Result<()> {
        self.near.write_all(&[1])
    }
}

/// A child's end.
#[derive(Debug)]
pub(crate) struct Awaited(OwnedFd);

impl Awaited {
    /// Takes the end from the process's descriptors.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn take() -> io::Result<Self> {
        // SAFETY: the program was started just now, and uses no descriptor beyond the standard streams yet.
        // If this one is not open, the next call says so, and nothing is closed.
        let end = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(DESCRIPTOR) });
        fcntl_setfd(&*end, FdFlags::CLOEXEC)?;
        Ok(Self(ManuallyDrop::into_inner(end)))
    }

    /// Waits until the parent detaches this child, and returns true; or until it closes `socket`, its other
    /// end, and returns false.
    ///
    /// # Errors
    /// The host refuses to wait.
    pub(crate) fn wait(&self, socket: impl AsFd) -> io::Result<bool> {
        // The socket has no further message: it is readable once it is closed.
        self.poll(&socket, None)?;
        // It may have been closed after the byte was written.
        self.poll(&socket, Some(&Timespec::default()))
    }

    fn poll(&self, socket: &impl AsFd, limit: Option<&Timespec>) -> io::Result<bool> {
        let mut ready = [PollFd::new(&self.0, PollFlags::IN), PollFd::new(socket, PollFlags::IN)];
        retry_on_intr(|| poll(&mut ready, limit))?;
        Ok(ready[0].revents().contains(PollFlags::IN))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pair() -> (Detachment, [Awaited; 2]) {
        let detachment = Detachment::new().unwrap();
        let ends = [(); 2].map(|()| Awaited(detachment.of_child().unwrap()));
        (detachment, ends)
    }

    #[test]
    fn all_children_see_one_byte_also_if_the_parent_ends_then() {
        let (detachment, ends) = pair();
        let (near, far) = UnixStream::pair().unwrap();
        detachment.detach_all().unwrap();
        assert!(ends[0].wait(&far).unwrap());
        drop(near);
        assert!(ends.iter().all(|end| end.wait(&far).unwrap()));
    }

    #[test]
    fn no_child_is_detached_by_a_parent_that_ends_before() {
        let (detachment, ends) = pair();
        let (near, far) = UnixStream::pair().unwrap();
        drop((detachment, near));
        assert!(ends.iter().all(|end| !end.wait(&far).unwrap()));
        // The parent that gives a fork up closes a child's socket, and its pipe later.
        let (_detachment, ends) = pair();
        assert!(!ends[0].wait(&far).unwrap());
    }
}
