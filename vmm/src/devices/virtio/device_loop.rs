//! The thread of a device, from the driver's `DRIVER_OK` to the stop.
//!
//! ```text
//!   DRIVER_OK ──────────────────────────────────────> a thread of its own ──stop──> the queues
//!   VM resumes ──first turn──> idle slot ──an event─────────^                          ^
//!                                  └─────────────────── stop ──────────────────────────┘
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use log::Level;
use rustix::event::epoll::Event;
use rustix::event::{PollFd, PollFlags, poll};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::chain::UNAVAILABLE;
use super::failures::Failures;
use super::queue::VirtQueue;
use super::view::View;
use super::watch::{NOTIFIED, STOP, Watch, borrowed};
use super::{DeviceFailed, DeviceIo, NextTurn, VirtioDevice, WakeReason};
use crate::error::{Error, Result};
use crate::memory::ram::GuestRam;
use crate::sandbox::ThreadKind;
use crate::sync::lock;
use crate::threads;

/// The most events taken at once.
const EVENTS: usize = 64;

/// Shared parts of a device for its thread.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    /// The device's name in the configuration.
    pub name: Arc<str>,
    pub device: Arc<Mutex<dyn VirtioDevice>>,
    pub ram: GuestRam,
    pub view: Arc<View>,
    /// The driver's notifications.
    pub notify: Arc<EventFd>,
    /// The features that the driver accepted.
    pub features: u64,
    pub failures: Arc<Failures>,
    /// The kind of the device's thread.
    pub thread: ThreadKind,
}

/// A started device. Dropping it stops the device.
#[derive(Debug)]
pub(crate) struct Worker {
    stop: EventFd,
    idle_slot: Arc<IdleSlot>,
    thread: Option<JoinHandle<Option<Vec<VirtQueue>>>>,
}

/// The loop of a device without a thread. Another thread watches for the device's events.
pub(crate) type IdleSlot = Mutex<Option<Box<DeviceLoop>>>;

/// The reason why a worker did not start, and its queues.
pub(crate) type NotStarted = (Error, Vec<VirtQueue>);

impl Worker {
    /// Starts a device on a thread.
    ///
    /// # Errors
    /// The host has no thread or descriptor left. Returns the queues.
    pub(crate) fn start(task: Task, queues: Vec<VirtQueue>) -> std::result::Result<Self, NotStarted> {
        let mut worker = Self::prepare(task, queues)?;
        #[cfg(feature = "fuzzing")]
        if super::fuzzing_hooks::is_driving() {
            worker.first_turn().take();
            return Ok(worker);
        }
        match worker.start_thread() {
            Ok(()) => Ok(worker),
            Err(error) => Err((error, worker.stop().expect("no thread has them"))),
        }
    }

    /// Makes an idle worker of `queues`. [`Worker::first_turn`] and [`Worker::settle`] follow.
    ///
    /// # Errors
    /// The host has no descriptor left. Returns the queues.
    pub(crate) fn prepare(task: Task, queues: Vec<VirtQueue>) -> std::result::Result<Self, NotStarted> {
        let descriptors = || -> std::io::Result<_> {
            let stop = EventFd::new(EFD_NONBLOCK)?;
            let watch = Watch::new(&task.notify, &stop)?;
            Ok((stop, watch))
        };
        let (stop, watch) = match descriptors() {
            Ok(descriptors) => descriptors,
            Err(source) => {
                return Err((Error::host(format!("make descriptors for {}", task.name), source), queues));
            }
        };
        let device_loop = DeviceLoop { task, queues, watch, begun: false, next: NextTurn::Wait };
        Ok(Self { stop, idle_slot: Arc::new(Mutex::new(Some(Box::new(device_loop)))), thread: None })
    }

    /// The device's first turn. The caller takes it without holding a lock.
    pub(crate) fn first_turn(&self) -> FirstTurn {
        FirstTurn(Arc::clone(&self.idle_slot))
    }

    /// Starts a thread if the first turn left work. Otherwise returns the descriptors that wake the idle
    /// device, or nothing for a failed device.
    ///
    /// # Errors
    /// The host has no thread or descriptor left.
    pub(crate) fn settle(&mut self) -> Result<Option<Watch>> {
        let (next, watch) = match &*lock(&self.idle_slot) {
            Some(device_loop) if self.thread.is_none() => {
                let is_broken = device_loop.task.view.interrupt.is_reset_needed();
                (device_loop.next, (!is_broken).then(|| device_loop.watch.clone()))
            }
            _ => return Ok(None),
        };
        if next == NextTurn::Wait {
            return Ok(watch);
        }
        self.start_thread().map(|()| None)
    }

    /// Starts the device's thread, unless it has one.
    ///
    /// # Errors
    /// The host has no thread or descriptor left. The device stays idle.
    pub(crate) fn start_thread(&mut self) -> Result<()> {
        let (name, kind) = match &*lock(&self.idle_slot) {
            Some(device_loop) if self.thread.is_none() => {
                let task = &device_loop.task;
                (Arc::clone(&task.name), task.thread)
            }
            _ => return Ok(()),
        };
        let failed = |source| Error::host(format!("start the worker of {name}"), source);
        let stop = self.stop.try_clone().map_err(failed)?;
        let idle_slot = Arc::clone(&self.idle_slot);
        self.thread = Some(threads::spawn(kind, &name, move || work(&idle_slot, &stop))?);
        Ok(())
    }

    /// The place of the loop while no thread runs it.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn idle_slot(&self) -> &Arc<IdleSlot> {
        &self.idle_slot
    }

    /// Completes work in flight and returns the queues, or `None` if the thread itself panicked.
    pub(crate) fn stop(mut self) -> Option<Vec<VirtQueue>> {
        self.end()
    }

    fn end(&mut self) -> Option<Vec<VirtQueue>> {
        if let Some(thread) = self.thread.take() {
            let _ = self.stop.write(1); // an eventfd that was never written takes a 1
            return thread.join().ok().flatten();
        }
        let device_loop = lock(&self.idle_slot).take()?;
        Some(device_loop.end())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

/// The first turn of a device without a thread. It may wait for I/O of the host, so the transport's lock must
/// not be held.
#[derive(Debug)]
pub(crate) struct FirstTurn(Arc<IdleSlot>);

impl FirstTurn {
    /// Takes the turn on this thread, unless the device was stopped or has a thread. A stop waits for the end
    /// of the turn.
    pub(crate) fn take(self) {
        if let Some(device_loop) = &mut *lock(&self.0)
            && !device_loop.begun
        {
            device_loop.begin();
        }
    }
}

impl Task {
    /// Calls the device. An error or a panic ends here: the device then asks its driver for a reset.
    fn on_device<T>(
        &self,
        queues: &mut [VirtQueue],
        act: impl FnOnce(&mut dyn VirtioDevice, &mut DeviceIo<'_>) -> std::result::Result<T, DeviceFailed>,
    ) -> Option<T> {
        let Self { name, device, ram, view, notify: _, features, failures, thread: _ } = self;
        let (interrupt, counters) = (&view.interrupt, &view.counters);
        let mut io =
            DeviceIo { ram, queues, interrupt, counters, features: *features, config_changed: false };
        let mut device = lock(device);
        let Ok(done) = catch_unwind(AssertUnwindSafe(|| act(&mut *device, &mut io))) else {
            interrupt.needs_reset();
            counters.failures.add(1);
            failures.report(Level::Error, name, format_args!("it panicked, a bug of volt-vmm"));
            // Work in flight must not touch guest memory later.
            let _ = catch_unwind(AssertUnwindSafe(|| device.reset()));
            return None;
        };
        if io.config_changed {
            view.config_changed(&*device);
        }
        if let Err(broken) = &done {
            // A client that is told of the failure finds it counted.
            interrupt.needs_reset();
            counters.failures.add(1);
            if *broken != UNAVAILABLE {
                failures.report(Level::Warn, name, format_args!("{broken}"));
            }
        }
        done.ok()
    }
}

/// The loop of a device: wait, work, repeat.
#[derive(Debug)]
pub(crate) struct DeviceLoop {
    task: Task,
    queues: Vec<VirtQueue>,
    watch: Watch,
    begun: bool,
    next: NextTurn,
}

impl DeviceLoop {
    /// The first turn. The device looks at all queues, so earlier notifications need no turn of their own.
    fn begin(&mut self) {
        self.begun = true;
        let notified = self.task.notify.read().is_ok(); // fails when there was nothing, which is fine
        self.task.view.counters.notifications.add(notified.into());
        self.task.view.interrupt.repeat();
        self.next = self.turn(None);
    }

    /// Starts the device, or lets it work.
    fn turn(&mut self, cause: Option<WakeReason>) -> NextTurn {
        if self.task.view.interrupt.is_reset_needed() {
            return NextTurn::Wait;
        }
        let watch = &self.watch;
        let next = self.task.on_device(&mut self.queues, |device, io| match cause {
            Some(cause) => device.work(cause, io),
            None => device.begin(io, watch).and_then(|()| device.work(WakeReason::Notified, io)),
        });
        next.unwrap_or(NextTurn::Wait)
    }

    /// Waits for events and handles them. Returns false after a stop event.
    fn round(&mut self, events: &mut Vec<Event>) -> bool {
        self.watch.wait(events, self.next);
        self.answer(events)
    }

    /// Handles events, and takes a turn that is due. Returns false after a stop event.
    fn answer(&mut self, events: &[Event]) -> bool {
        if events.iter().any(|event| event.data.u64() == STOP) {
            return false;
        }
        let mut look = is_due(self.next);
        if look {
            self.next = NextTurn::Wait;
        }
        for event in events {
            match event.data.u64() {
                NOTIFIED => {
                    self.task.view.counters.notifications.add(1);
                    look = true;
                }
                token => self.next = self.next.sooner(self.turn(Some(WakeReason::Ready(token)))),
            }
        }
        if look {
            self.next = self.next.sooner(self.turn(Some(WakeReason::Notified)));
        }
        true
    }

    /// Stops the device. Afterwards it does not touch the queues.
    fn end(mut self) -> Vec<VirtQueue> {
        if self.begun && !self.task.view.interrupt.is_reset_needed() {
            self.task.on_device(&mut self.queues, |device, io| device.end(io));
        }
        self.queues
    }
}

/// Access for fuzzing, which drives all devices on one thread.
#[cfg(feature = "fuzzing")]
impl DeviceLoop {
    pub(crate) fn queues(&self) -> &[VirtQueue] {
        &self.queues
    }

    /// Takes a round without waiting. Returns false if there was nothing to do.
    pub(crate) fn try_round(&mut self) -> bool {
        if self.task.view.interrupt.is_reset_needed() {
            return false;
        }
        let mut events = Vec::with_capacity(EVENTS);
        self.watch.wait(&mut events, NextTurn::Again);
        let any = !events.is_empty() || is_due(self.next);
        self.answer(&events);
        any
    }
}

fn work(idle_slot: &IdleSlot, stop: &EventFd) -> Option<Vec<VirtQueue>> {
    let mut device_loop = lock(idle_slot).take()?;
    if !device_loop.begun {
        device_loop.begin();
    }
    let mut events = Vec::with_capacity(EVENTS);
    loop {
        if device_loop.task.view.interrupt.is_reset_needed() {
            await_stop(stop);
            break;
        }
        if !device_loop.round(&mut events) {
            break;
        }
    }
    Some(device_loop.end())
}

/// Waits for the stop event. A failed device does not read its other descriptors, which would wake it again
/// and again.
fn await_stop(stop: &EventFd) {
    let stop = borrowed(stop);
    while poll(&mut [PollFd::new(&stop, PollFlags::IN)], None).is_err() {} // interrupted
}

fn is_due(next: NextTurn) -> bool {
    match next {
        NextTurn::Again => true,
        NextTurn::At(time) => time <= Instant::now(),
        NextTurn::Wait => false,
    }
}
