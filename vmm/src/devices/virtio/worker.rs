//! The thread that a device works on, from the driver's go-ahead to its stop.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::interrupt::Interrupt;
use super::queue::VirtQueue;
use super::{Broken, Cause, Io, Next, VirtioDevice};
use crate::error::{Error, Result};
use crate::memory::ram::GuestRam;
use crate::sync::lock;

/// What the worker itself watches; a device numbers its own descriptors from 0.
const STOP: u64 = u64::MAX;
const NOTIFIED: u64 = u64::MAX - 1;
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

/// A running worker. Dropped, it is stopped.
#[derive(Debug)]
pub(super) struct Worker {
    hands: Option<Hands>,
    stop: EventFd,
}

/// Who does the work.
#[derive(Debug)]
enum Hands {
    Thread(JoinHandle<Vec<VirtQueue>>),
    /// Whoever has the worker, when it pleases.
    #[cfg(feature = "fuzzing")]
    Owner(Box<Shift>),
}

impl Worker {
    /// Begins to work on `queues`.
    ///
    /// # Errors
    /// The host has no thread or descriptor left.
    pub(super) fn start(task: Task, queues: Vec<VirtQueue>) -> Result<Self> {
        let failed =
            |source: std::io::Error| Error::host(format!("start the worker of {}", task.name), source);
        let stop = EventFd::new(EFD_NONBLOCK).map_err(failed)?;
        let watch = Watch::new(&task.notify, &stop).map_err(failed)?;
        #[cfg(feature = "fuzzing")]
        if super::fuzzing::is_driving() {
            let shift = Box::new(Shift::begin(task, queues, watch));
            return Ok(Self { hands: Some(Hands::Owner(shift)), stop });
        }
        let name = format!("volt-{}", task.name);
        let body = {
            let (task, stop) = (task.clone(), stop.try_clone().map_err(failed)?);
            move || work(task, queues, watch, &stop)
        };
        let thread = thread::Builder::new().name(name).spawn(body).map_err(failed)?;
        Ok(Self { hands: Some(Hands::Thread(thread)), stop })
    }

    /// Brings what is under way to an end and gives the queues back. None when the device panicked.
    pub(super) fn stop(mut self) -> Option<Vec<VirtQueue>> {
        self.end()
    }

    fn end(&mut self) -> Option<Vec<VirtQueue>> {
        let hands = self.hands.take()?;
        let _ = self.stop.write(1); // an eventfd that was never written takes a 1
        match hands {
            Hands::Thread(thread) => thread.join().ok(),
            #[cfg(feature = "fuzzing")]
            Hands::Owner(shift) => Some(shift.end()),
        }
    }

    #[cfg(feature = "fuzzing")]
    pub(super) fn shift(&mut self) -> Option<&mut Shift> {
        match self.hands.as_mut()? {
            Hands::Thread(_) => None,
            Hands::Owner(shift) => Some(shift),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

/// The descriptors that wake a device. Cloning shares them: a device that watches more or less as it works keeps a clone
/// until its end.
#[derive(Clone, Debug)]
pub struct Watch(Arc<OwnedFd>);

impl Watch {
    fn new(notify: &EventFd, stop: &EventFd) -> std::io::Result<Self> {
        let watch = Self(Arc::new(epoll::create(CreateFlags::CLOEXEC)?));
        // Each notification is an edge, so that nobody has to read the descriptor.
        watch.add(&borrowed(notify), NOTIFIED, EventFlags::IN | EventFlags::ET)?;
        watch.add(&borrowed(stop), STOP, EventFlags::IN)?;
        Ok(watch)
    }

    /// Wakes the device with [`Cause::Ready`] and `token` when `fd` is ready for `what`.
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
    fn wait(&self, events: &mut Vec<Event>, next: Next) {
        let timeout = match next {
            Next::Wait => None,
            Next::Again => Some(Timespec::default()),
            Next::At(time) => {
                let left = time.saturating_duration_since(Instant::now());
                Some(Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() })
            }
        };
        events.clear();
        // Interrupted, it has no events, and the worker looks at its queues for nothing.
        let _ = epoll::wait(&*self.0, spare_capacity(events), timeout.as_ref());
    }
}

/// vmm-sys-util's descriptors know only the raw form.
#[allow(unsafe_code)]
fn borrowed(fd: &EventFd) -> BorrowedFd<'_> {
    // SAFETY: it is open for as long as it is borrowed.
    unsafe { BorrowedFd::borrow_raw(fd.as_raw_fd()) }
}

/// A device at work: it is woken, works, and waits again, a round at a time.
#[derive(Debug)]
pub(super) struct Shift {
    task: Task,
    queues: Vec<VirtQueue>,
    watch: Watch,
    next: Next,
}

impl Shift {
    fn begin(task: Task, queues: Vec<VirtQueue>, watch: Watch) -> Self {
        task.interrupt.repeat();
        let mut shift = Self { task, queues, watch, next: Next::Wait };
        shift.next = shift.turn(None);
        shift
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

fn work(task: Task, queues: Vec<VirtQueue>, watch: Watch, stop: &EventFd) -> Vec<VirtQueue> {
    let mut shift = Shift::begin(task, queues, watch);
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
