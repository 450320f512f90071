//! Watches all idle devices of a VM on one thread.
//!
//! After a restore or a pause, each device takes its first turn on this thread and looks at its queues once.
//! An idle device then gets its own thread when its driver or the host first needs it. A clone thus starts no
//! threads during its guest's first steps: a new thread and a page fault both need the lock of the process's
//! memory map. Devices that the clone does not use never get a thread.
//!
//! The thread also starts and stops the threads of devices whose drivers do so, for the vCPUs
//! ([`super::starter_requests`]).

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use super::bus::BusDevice;
use super::starter_requests::StarterRequests;
use super::virtio::transport::Transport;
use crate::error::{Error, Result, report};
use crate::run_control::Control;
use crate::sandbox::ThreadKind;
use crate::sync::{lock, signal};
use crate::threads;

/// Numbers of the events that no device has: the end, and a request.
const STOP: u64 = u64::MAX;
const REQUEST: u64 = u64::MAX - 1;
/// The most events taken at once: one for each device that a VM can have, and those two.
const EVENTS: usize = crate::config::devices::MAX_DEVICES + 2;

/// The thread. Dropping it stops the thread; idle devices stay idle.
#[derive(Debug)]
pub(super) struct IdleWatcher {
    stop: OwnedFd,
    requests: Arc<StarterRequests>,
    thread: Option<JoinHandle<()>>,
}

impl IdleWatcher {
    /// Resumes those of `devices` that their drivers have started, watches them, and serves requests. Ends
    /// the VM if a device cannot resume.
    ///
    /// # Errors
    /// The host has no thread or descriptor left.
    pub(super) fn start(
        devices: Vec<Arc<Mutex<Transport>>>,
        requests: &Arc<StarterRequests>,
        control: Arc<Control>,
    ) -> Result<Self> {
        let failed = |source| Error::host("start the thread that starts devices", source);
        let make = || eventfd(0, EventfdFlags::CLOEXEC).map_err(|source| failed(source.into()));
        let (stop, asked) = (make()?, make()?);
        requests.open(asked.try_clone().map_err(failed)?);
        let told = stop.try_clone().map_err(failed)?;
        let served = Arc::clone(requests);
        let body = move || {
            if let Err(error) = attend(&devices, &served, &asked, &told) {
                control.end(Err(report(&error)));
            }
            served.close();
        };
        let thread =
            threads::spawn(ThreadKind::Starter, "devices", body).inspect_err(|_| requests.close())?;
        Ok(Self { stop, requests: Arc::clone(requests), thread: Some(thread) })
    }
}

impl Drop for IdleWatcher {
    fn drop(&mut self) {
        // An eventfd that was never written accepts a 1.
        signal(&self.stop, 1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it does not panic, and if it did the devices would be idle
        }
        self.requests.close();
    }
}

fn attend(
    devices: &[Arc<Mutex<Transport>>],
    requests: &StarterRequests,
    asked: &OwnedFd,
    stop: &OwnedFd,
) -> Result<()> {
    let failed = |source: rustix::io::Errno| Error::host("wait for devices", source);
    let idle = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
    for (event, number) in [(stop, STOP), (asked, REQUEST)] {
        epoll::add(&idle, event, EventData::new_u64(number), EventFlags::IN).map_err(failed)?;
    }
    for (number, device) in (0..).zip(devices) {
        // Outside the transport's lock: the turn may last as long as a disk's sync, and vCPUs need the lock.
        let first = lock(device).stand_by()?;
        if let Some(first) = first {
            first.take();
        }
        let watch = lock(device).settle()?;
        if let Some(watch) = watch {
            // Reported once: from then on the device watches itself.
            let once = EventFlags::IN | EventFlags::ONESHOT;
            epoll::add(&idle, &watch, EventData::new_u64(number), once).map_err(failed)?;
        }
    }
    let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
    loop {
        events.clear();
        match epoll::wait(&idle, spare_capacity(&mut events), None) {
            Err(rustix::io::Errno::INTR) => continue,
            done => done.map_err(failed)?,
        };
        for event in &events {
            match event.data.u64() {
                STOP => return Ok(()),
                REQUEST => {
                    let _ = rustix::io::read(asked, &mut [0; 8]); // it was written
                    let writes = requests.take();
                    for write in &writes {
                        let value = write.value.to_le_bytes();
                        lock(&devices[write.device]).write(write.offset, &value);
                    }
                    requests.finish(writes.len());
                }
                number => lock(&devices[number as usize]).wake()?,
            }
        }
    }
}
