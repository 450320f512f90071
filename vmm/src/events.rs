//! Events of a VM, for those who follow it.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Result;
use crate::run_state::{Ending, RunState};
use crate::sync::lock;

/// An event of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VmEvent {
    /// The owner paused or resumed the VM.
    State(RunState),
    /// A device stopped, and works again once its driver resets it.
    DeviceFailed {
        /// The device's name in snapshots, such as `disk-root`.
        device: String,
        /// The reason.
        problem: String,
    },
    /// The policy of a network device denied something. A guest can cause any number of them, so most of a
    /// flood are left out.
    Denied {
        /// The device's name in snapshots, such as `net-eth0`.
        device: String,
        /// Target and reason.
        what: String,
    },
    /// The guest has ended: how, or the description of a crash. No other event follows.
    Ended(std::result::Result<Ending, String>),
}

type Follower = Box<dyn Fn(&VmEvent) + Send>;

/// The followers of a VM.
#[derive(Default)]
pub(crate) struct Events {
    /// Whether there is a follower: an event of a VM without one costs a load.
    is_followed: AtomicBool,
    followers: Mutex<Followers>,
}

#[derive(Default)]
struct Followers {
    /// Those that have not been told of the end.
    all: Vec<Follower>,
    end: Option<VmEvent>,
}

impl Events {
    /// Calls `act` at each event from now on, and at once if the guest has ended.
    pub(crate) fn follow(&self, act: impl Fn(&VmEvent) + Send + 'static) {
        let mut followers = lock(&self.followers);
        match &followers.end {
            Some(end) => act(end),
            None => followers.all.push(Box::new(act)),
        }
        self.is_followed.store(true, Ordering::Release);
    }

    /// Tells the followers of the end, once.
    pub(crate) fn end(&self, ending: &Result<Ending>) {
        let mut followers = lock(&self.followers);
        if followers.end.is_none() {
            let ending = ending.as_ref().copied().map_err(|error| crate::error::report(error));
            let event = VmEvent::Ended(ending);
            followers.all.drain(..).for_each(|follower| follower(&event));
            followers.end = Some(event);
        }
    }

    /// Tells the followers of an event, which `make` describes.
    pub(crate) fn emit(&self, make: impl FnOnce() -> VmEvent) {
        if self.is_followed.load(Ordering::Acquire) {
            let event = make();
            // Without a follower after the end.
            lock(&self.followers).all.iter().for_each(|follower| follower(&event));
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("is_followed", &self.is_followed).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn each_follower_gets_each_event_after_its_start() {
        let events = Events::default();
        events.emit(|| unreachable!("nobody follows"));
        let (first, second) = (mpsc::channel(), mpsc::channel());
        events.follow(move |event| first.0.send(event.clone()).unwrap());
        events.emit(|| VmEvent::State(RunState::Paused));
        events.follow(move |event| second.0.send(event.clone()).unwrap());
        events.end(&Ok(Ending::Poweroff));
        events.end(&Ok(Ending::Stopped));
        events.emit(|| VmEvent::State(RunState::Running));
        let late = mpsc::channel();
        events.follow(move |event| late.0.send(event.clone()).unwrap());
        let (paused, ended) = (VmEvent::State(RunState::Paused), VmEvent::Ended(Ok(Ending::Poweroff)));
        assert_eq!(first.1.try_iter().collect::<Vec<_>>(), [paused, ended.clone()]);
        assert_eq!(second.1.try_iter().collect::<Vec<_>>(), std::slice::from_ref(&ended));
        assert_eq!(late.1.try_iter().collect::<Vec<_>>(), [ended]);
    }
}
