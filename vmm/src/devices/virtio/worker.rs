//! Who works on a device, from the driver's go-ahead to its stop.
//!
//! ```text
//!   the driver says go ahead ─────────────────────> a thread of its own ──stop──> the queues, as they are
//!   a VM goes on ──begin──> nobody: it is idle ──────────^                          ^
//!                                  │   something wakes it                           │
//!                                  └──────────────────── stop ──────────────────────┘
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rustix::event::epoll::Event;
use rustix::event::{PollFd, PollFlags, poll};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::interrupt::Interrupt;
use super::queue::VirtQueue;
use super::watch::{NOTIFIED, STOP, Watch, borrowed};
use super::{Broken, Cause, Io, Next, VirtioDevice};
use crate::error::{Error, Result};
use crate::memory::ram::GuestRam;
use crate::sync::lock;

/// The most events of one look.
const EVENTS: usize = 64;

/// What a worker works with.
#[derive(Clone, Debug)]
pub(super) struct Task {
    /// The device's name in the configuration.
    pub name: Arc<str>,
    pub device: Arc<Mutex<dyn VirtioDevice>>,
    pub ram: GuestRam,
    pub interrupt: Arc<Interrupt>,
    /// The driver's notifications.
    pub notify: Arc<EventFd>,
    /// The features that the driver took.
    pub features: u64,
}

/// A worker. Dropped, it is stopped.
#[derive(Debug)]
pub(super) struct Worker {
    hands: Option<Hands>,
    stop: EventFd,
}

/// Who does the work.
#[derive(Debug)]
enum Hands {
    Thread(JoinHandle<Vec<VirtQueue>>),
    /// Nobody, for now: somebody else is to notice when it wakes.
    Idle(Box<Shift>),
}

impl Worker {
    /// Begins to work on `queues`, on a thread.
    ///
    /// # Errors
    /// The host has no thread or descriptor left.
    pub(super) fn start(task: Task, queues: Vec<VirtQueue>) -> Result<Self> {
        let mut worker = Self::new(task, queues)?;
        #[cfg(feature = "fuzzing")]
        if super::fuzzing::is_driving() {
            worker.idle().expect("no thread yet").begin();
            return Ok(worker);
        }
        worker.hire()?;
        Ok(worker)
    }

    /// Begins to work on `queues` here and now, and takes a thread only if that is not all that there is to do.
    ///
    /// # Errors
    /// As [`Worker::start`].
    pub(super) fn begin(task: Task, queues: Vec<VirtQueue>) -> Result<Self> {
        let mut worker = Self::new(task, queues)?;
        let Some(Hands::Idle(shift)) = &mut worker.hands else { unreachable!("no thread yet") };
        if unharmed(|| shift.begin()).is_none() {
            shift.task.interrupt.needs_reset();
        }
        if shift.next != Next::Wait {
            worker.hire()?;
        }
        Ok(worker)
    }

    /// One that has not begun.
    fn new(task: Task, queues: Vec<VirtQueue>) -> Result<Self> {
        let failed = |source| Error::host(format!("make descriptors for {}", task.name), source);
        let stop = EventFd::new(EFD_NONBLOCK).map_err(failed)?;
        let watch = Watch::new(&task.notify, &stop).map_err(failed)?;
        let shift = Shift { task, queues, watch, begun: false, next: Next::Wait };
        Ok(Self { hands: Some(Hands::Idle(Box::new(shift))), stop })
    }

    /// Gives it a thread, if it has none.
    ///
    /// # Errors
    /// The host has no thread or descriptor left.
    pub(super) fn hire(&mut self) -> Result<()> {
        let shift = match self.hands.take() {
            Some(Hands::Idle(shift)) => shift,
            other => {
                self.hands = other;
                return Ok(());
            }
        };
        let name = Arc::clone(&shift.task.name);
        let failed = |source| Error::host(format!("start the worker of {name}"), source);
        let stop = self.stop.try_clone().map_err(failed)?;
        let thread = thread::Builder::new().name(format!("volt-{name}"));
        self.hands = Some(Hands::Thread(thread.spawn(move || work(*shift, &stop)).map_err(failed)?));
        Ok(())
    }

    /// What it waits for while it is idle. Nothing wakes a broken device.
    pub(super) fn idle_watch(&mut self) -> Option<&Watch> {
        self.idle().filter(|shift| !shift.task.interrupt.is_reset_needed()).map(|shift| &shift.watch)
    }

    /// The work, while it is nobody's.
    pub(super) fn idle(&mut self) -> Option<&mut Shift> {
        match self.hands.as_mut()? {
            Hands::Thread(_) => None,
            Hands::Idle(shift) => Some(shift),
        }
    }

    /// Brings what is under way to an end and gives the queues back. None when the device panicked.
    pub(super) fn stop(mut self) -> Option<Vec<VirtQueue>> {
        self.end()
    }

    fn end(&mut self) -> Option<Vec<VirtQueue>> {
        match self.hands.take()? {
            Hands::Thread(thread) => {
                let _ = self.stop.write(1); // an eventfd that was never written takes a 1
                thread.join().ok()
            }
            Hands::Idle(shift) => unharmed(|| shift.end()),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

/// A device's panic is not to be that of whoever happens to work on it.
fn unharmed<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// A device at work: it is woken, works, and waits again, a round at a time.
#[derive(Debug)]
pub(super) struct Shift {
    task: Task,
    queues: Vec<VirtQueue>,
    watch: Watch,
    begun: bool,
    next: Next,
}

impl Shift {
    /// The first turn, at which it looks at all queues: what was notified before needs no other.
    fn begin(&mut self) {
        self.begun = true;
        let _ = self.task.notify.read(); // fails when there was nothing, which is fine
        self.task.interrupt.repeat();
        self.next = self.turn(None);
    }

    /// Lets the device begin, or work.
    fn turn(&mut self, cause: Option<Cause>) -> Next {
        let Task { name, device, ram, interrupt, notify: _, features } = &self.task;
        if interrupt.is_reset_needed() {
            return Next::Wait;
        }
        let io = &mut Io { ram, queues: &mut self.queues, interrupt, features: *features };
        let mut device = lock(device);
        let done = match cause {
            Some(cause) => device.work(cause, io),
            None => device.begin(io, &self.watch).and_then(|()| device.work(Cause::Notified, io)),
        };
        done.unwrap_or_else(|broken| {
            give_up(name, interrupt, broken);
            Next::Wait
        })
    }

    /// Waits for something to do, and does it. False when it was told to stop.
    fn round(&mut self, events: &mut Vec<Event>) -> bool {
        self.watch.wait(events, self.next);
        self.answer(events)
    }

    /// Does what the events ask for, and what is due.
    fn answer(&mut self, events: &[Event]) -> bool {
        if events.iter().any(|event| event.data.u64() == STOP) {
            return false;
        }
        let mut look = is_due(self.next);
        if look {
            self.next = Next::Wait;
        }
        for event in events {
            match event.data.u64() {
                NOTIFIED => look = true,
                token => self.next = sooner(self.next, self.turn(Some(Cause::Ready(token)))),
            }
        }
        if look {
            self.next = sooner(self.next, self.turn(Some(Cause::Notified)));
        }
        true
    }

    /// Nothing of the device touches the queues afterwards.
    fn end(mut self) -> Vec<VirtQueue> {
        let Task { name, device, ram, interrupt, notify: _, features } = &self.task;
        let io = &mut Io { ram, queues: &mut self.queues, interrupt, features: *features };
        if !interrupt.is_reset_needed()
            && let Err(broken) = lock(device).end(io)
        {
            give_up(name, interrupt, broken);
        }
        self.queues
    }
}

/// For fuzzing, which has no threads but its own.
#[cfg(feature = "fuzzing")]
impl Shift {
    pub(super) fn queues(&self) -> &[VirtQueue] {
        &self.queues
    }

    /// A round without waiting. False when there was nothing to do.
    pub(super) fn try_round(&mut self) -> bool {
        if self.task.interrupt.is_reset_needed() {
            return false;
        }
        let mut events = Vec::with_capacity(EVENTS);
        self.watch.wait(&mut events, Next::Again);
        let any = !events.is_empty() || is_due(self.next);
        self.answer(&events);
        any
    }
}

fn work(mut shift: Shift, stop: &EventFd) -> Vec<VirtQueue> {
    if !shift.begun {
        shift.begin();
    }
    let mut events = Vec::with_capacity(EVENTS);
    loop {
        if shift.task.interrupt.is_reset_needed() {
            await_stop(stop);
            break;
        }
        if !shift.round(&mut events) {
            break;
        }
    }
    shift.end()
}

/// A device that has given up takes nothing from what it watches, which would wake it for ever.
fn await_stop(stop: &EventFd) {
    let stop = borrowed(stop);
    while poll(&mut [PollFd::new(&stop, PollFlags::IN)], None).is_err() {} // interrupted
}

fn give_up(name: &str, interrupt: &Interrupt, broken: Broken) {
    log::warn!("{name}: {broken}; the device stops until its driver resets it");
    interrupt.needs_reset();
}

fn is_due(next: Next) -> bool {
    match next {
        Next::Again => true,
        Next::At(time) => time <= Instant::now(),
        Next::Wait => false,
    }
}

fn sooner(one: Next, other: Next) -> Next {
    match (one, other) {
        (Next::Again, _) | (_, Next::Again) => Next::Again,
        (Next::At(one), Next::At(other)) => Next::At(one.min(other)),
        (Next::At(time), Next::Wait) | (Next::Wait, Next::At(time)) => Next::At(time),
        (Next::Wait, Next::Wait) => Next::Wait,
    }
}
