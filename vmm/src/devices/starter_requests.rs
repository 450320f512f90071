//! Register writes that a vCPU leaves to the thread that starts devices.
//!
//! A write to a device's status, or to a queue's readiness, starts or stops a thread. A confined vCPU may not
//! start threads, so it hands over the write and waits until the register has the new value.
//!
//! ```text
//!   vCPU ──status, queue readiness──> StarterRequests ──eventfd──> IdleWatcher ──> Transport
//!     └──────── any other register ───────────────────────────────────────────────────^
//! ```

use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex};

use super::bus::BusView;
use super::virtio::registers::reg;
use super::virtio::view::View;
use crate::sync::{lock, signal, wait_while};

/// A write to a register of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegisterWrite {
    /// The device's number on the platform.
    pub device: usize,
    pub offset: u64,
    pub value: u32,
}

/// The writes that wait for the thread.
#[derive(Debug, Default)]
pub(super) struct StarterRequests {
    waiting: Mutex<Waiting>,
    /// Notified after each change that a vCPU waits for.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Wakes the thread. Absent while no thread takes requests: no vCPU runs then, or the VM has failed.
    wake: Option<OwnedFd>,
    writes: Vec<RegisterWrite>,
    /// Writes handed over so far, and those of them that were done.
    given: u64,
    done: u64,
}

impl StarterRequests {
    /// Accepts requests from now on. Each is announced by a write to the eventfd `wake`.
    pub fn open(&self, wake: OwnedFd) {
        lock(&self.waiting).wake = Some(wake);
    }

    /// Refuses requests from now on, and releases the vCPUs that wait.
    pub fn close(&self) {
        let mut waiting = lock(&self.waiting);
        waiting.wake = None;
        waiting.writes.clear();
        waiting.done = waiting.given;
        drop(waiting);
        self.changed.notify_all();
    }

    /// Takes all requests that wait. [`StarterRequests::finish`] follows.
    pub fn take(&self) -> Vec<RegisterWrite> {
        std::mem::take(&mut lock(&self.waiting).writes)
    }

    /// Releases the vCPUs whose `count` requests, the oldest, are done.
    pub fn finish(&self, count: usize) {
        lock(&self.waiting).done += count as u64;
        self.changed.notify_all();
    }

    /// Hands over a write, and waits until it is done. Returns false if no thread takes requests.
    fn hand_over(&self, write: RegisterWrite) -> bool {
        let mut waiting = lock(&self.waiting);
        let Some(wake) = &waiting.wake else { return false };
        signal(wake, 1); // one that fails is full: the thread is awake
        waiting.writes.push(write);
        waiting.given += 1;
        let ticket = waiting.given;
        drop(wait_while(&self.changed, waiting, |waiting| waiting.done < ticket));
        true
    }
}

/// A device's registers as vCPUs access them.
#[derive(Debug)]
pub(super) struct VcpuView {
    pub view: Arc<View>,
    pub requests: Arc<StarterRequests>,
    /// The device's number on the platform.
    pub device: usize,
}

impl BusView for VcpuView {
    fn read(&self, offset: u64, data: &mut [u8]) -> bool {
        self.view.read(offset, data)
    }

    fn write(&self, offset: u64, data: &[u8]) -> bool {
        match <[u8; 4]>::try_from(data) {
            Ok(value) if [reg::STATUS, reg::QUEUE_READY].contains(&offset) => {
                let value = u32::from_le_bytes(value);
                self.requests.hand_over(RegisterWrite { device: self.device, offset, value })
            }
            _ => self.view.write(offset, data),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn write(value: u32) -> RegisterWrite {
        RegisterWrite { device: 0, offset: reg::STATUS, value }
    }

    #[test]
    fn write_waits_until_it_is_done() {
        let requests = StarterRequests::default();
        let wake = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        requests.open(wake.try_clone().unwrap());
        thread::scope(|scope| {
            let vcpus = [1, 2].map(|value| {
                let requests = &requests;
                scope.spawn(move || requests.hand_over(write(value)))
            });
            let mut values = Vec::new();
            while values.len() < 2 {
                rustix::io::read(&wake, &mut [0; 8]).unwrap();
                let taken = requests.take();
                values.extend(taken.iter().map(|write| write.value));
                requests.finish(taken.len());
            }
            assert!(vcpus.into_iter().all(|vcpu| vcpu.join().unwrap()));
            values.sort_unstable();
            assert_eq!(values, [1, 2]);
        });
    }

    #[test]
    fn closed_requests_release_vcpus_and_refuse_writes() {
        let requests = StarterRequests::default();
        assert!(!requests.hand_over(write(1)), "no thread takes requests yet");
        let wake = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        requests.open(wake.try_clone().unwrap());
        thread::scope(|scope| {
            let vcpu = scope.spawn(|| requests.hand_over(write(1)));
            rustix::io::read(&wake, &mut [0; 8]).unwrap();
            requests.close();
            vcpu.join().unwrap();
        });
        assert!(!requests.hand_over(write(2)));
    }
}
