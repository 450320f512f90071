//! The descriptors that wake a device: its driver's notifications, the stop event, and the device's own.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use vmm_sys_util::eventfd::EventFd;

use super::NextTurn;

/// Tokens of the worker's descriptors. A device numbers its own from 0.
pub(super) const STOP: u64 = u64::MAX;
pub(super) const NOTIFIED: u64 = u64::MAX - 1;

/// The descriptors that wake a device. Clones share them: a device that changes its set while it works keeps
/// a clone until its end.
#[derive(Clone, Debug)]
pub struct Watch(Arc<OwnedFd>);

impl Watch {
    pub(super) fn new(notify: &EventFd, stop: &EventFd) -> std::io::Result<Self> {
        let watch = Self(Arc::new(epoll::create(CreateFlags::CLOEXEC)?));
        // Edge-triggered, so that the descriptor need not be read.
        watch.add(&borrowed(notify), NOTIFIED, EventFlags::IN | EventFlags::ET)?;
        watch.add(&borrowed(stop), STOP, EventFlags::IN)?;
        Ok(watch)
    }

    /// Wakes the device with [`super::WakeReason::Ready`] and `token` when `fd` has one of the events.
    ///
    /// # Errors
    /// The kernel refuses the descriptor.
    pub fn add(&self, fd: &impl AsFd, token: u64, what: EventFlags) -> std::io::Result<()> {
        Ok(epoll::add(&*self.0, fd, EventData::new_u64(token), what)?)
    }

    /// Changes the events of a descriptor.
    ///
    /// # Errors
    /// The descriptor is not watched.
    pub fn change(&self, fd: &impl AsFd, token: u64, what: EventFlags) -> std::io::Result<()> {
        Ok(epoll::modify(&*self.0, fd, EventData::new_u64(token), what)?)
    }

    /// Removes a descriptor.
    ///
    /// # Errors
    /// The descriptor is not watched.
    pub fn remove(&self, fd: &impl AsFd) -> std::io::Result<()> {
        Ok(epoll::delete(&*self.0, fd)?)
    }

    /// Waits for events, at most until the time of `next`.
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
        // An interrupted wait returns no events, and the worker looks at its queues without need.
        let _ = epoll::wait(&*self.0, spare_capacity(events), timeout.as_ref());
    }
}

/// Readable when an event waits.
impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Borrows an eventfd of vmm-sys-util, which offers the raw form alone.
#[allow(unsafe_code)]
pub(super) fn borrowed(fd: &EventFd) -> BorrowedFd<'_> {
    // SAFETY: the descriptor stays open while it is borrowed.
    unsafe { BorrowedFd::borrow_raw(fd.as_raw_fd()) }
}
