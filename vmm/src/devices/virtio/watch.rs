//! What wakes a device: its driver's notifications, the word to stop, and whatever else it has to look at.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use vmm_sys_util::eventfd::EventFd;

use super::NextTurn;

/// What the worker itself watches; a device numbers its own descriptors from 0.
pub(super) const STOP: u64 = u64::MAX;
pub(super) const NOTIFIED: u64 = u64::MAX - 1;

/// The descriptors that wake a device. Cloning shares them: a device that watches more or less as it works keeps a clone
/// until its end.
#[derive(Clone, Debug)]
pub struct Watch(Arc<OwnedFd>);

impl Watch {
    pub(super) fn new(notify: &EventFd, stop: &EventFd) -> std::io::Result<Self> {
        let watch = Self(Arc::new(epoll::create(CreateFlags::CLOEXEC)?));
        // Each notification is an edge, so that nobody has to read the descriptor.
        watch.add(&borrowed(notify), NOTIFIED, EventFlags::IN | EventFlags::ET)?;
        watch.add(&borrowed(stop), STOP, EventFlags::IN)?;
        Ok(watch)
    }

    /// Wakes the device with [`super::WakeReason::Ready`] and `token` when `fd` is ready for `what`.
    ///
    /// # Errors
    /// The kernel refuses the descriptor.
    pub fn add(&self, fd: &impl AsFd, token: u64, what: EventFlags) -> std::io::Result<()> {
        Ok(epoll::add(&*self.0, fd, EventData::new_u64(token), what)?)
    }

    /// Changes what it is woken for.
    ///
    /// # Errors
    /// The descriptor is not watched.
    pub fn change(&self, fd: &impl AsFd, token: u64, what: EventFlags) -> std::io::Result<()> {
        Ok(epoll::modify(&*self.0, fd, EventData::new_u64(token), what)?)
    }

    /// No longer.
    ///
    /// # Errors
    /// The descriptor is not watched.
    pub fn remove(&self, fd: &impl AsFd) -> std::io::Result<()> {
        Ok(epoll::delete(&*self.0, fd)?)
    }

    /// Waits for events until `next` says to go on anyway.
    pub(super) fn wait(&self, events: &mut Vec<Event>, next: NextTurn) {
        let timeout = match next {
            NextTurn::Wait => None,
            NextTurn::Again => Some(Timespec::default()),
            NextTurn::At(time) => {
                let left = time.saturating_duration_since(Instant::now());
                Some(Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() })
            }
        };
        events.clear();
        // Interrupted, it has no events, and the worker looks at its queues for nothing.
        let _ = epoll::wait(&*self.0, spare_capacity(events), timeout.as_ref());
    }
}

/// Ready when there is something to wake the device for.
impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// vmm-sys-util's descriptors know only the raw form.
#[allow(unsafe_code)]
pub(super) fn borrowed(fd: &EventFd) -> BorrowedFd<'_> {
    // SAFETY: it is open for as long as it is borrowed.
    unsafe { BorrowedFd::borrow_raw(fd.as_raw_fd()) }
}
