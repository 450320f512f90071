//! A device's interrupt: two status bits for the reason, and the line.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

use serde::{Deserialize, Serialize};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::counters::Counter;
use crate::devices::lines::InterruptLine;
use crate::error::{Error, Result};
use crate::sync::lock;

/// A queue has returned chains (virtio 1.2, section 4.2.2, `InterruptStatus`).
const QUEUE: u32 = 1;
/// The configuration changed, or the device needs a reset.
const CONFIG: u32 = 2;

/// A device's interrupt. Any thread may raise it.
#[derive(Debug)]
pub struct Interrupt {
    // Glue.
    /// An irqfd, for when the pin cannot be reached directly.
    line: EventFd,
    /// KVM passes an irqfd of an IOAPIC pin to a kernel thread. Raising the pin directly saves two switches
    /// between threads. The lock keeps edges apart: an edge that begins before another has ended is lost.
    pin: OnceLock<Mutex<InterruptLine>>,
    /// Number of interrupts.
    sent: Counter,
    // Volatile.
    status: AtomicU32,
    generation: AtomicU32,
    needs_reset: AtomicBool,
}

/// The part of an interrupt that the driver can see.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterruptState {
    status: u32,
    config_generation: u32,
    needs_reset: bool,
}

impl Interrupt {
    pub(super) fn new() -> Result<Self> {
        let line = EventFd::new(EFD_NONBLOCK).map_err(|source| Error::host("make an eventfd", source))?;
        Ok(Self {
            line,
            pin: OnceLock::new(),
            sent: Counter::default(),
            status: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            needs_reset: AtomicBool::new(false),
        })
    }

    /// Sets the pin, once. The irqfd leads to the same pin.
    pub(super) fn connect(&self, pin: InterruptLine) {
        let is_first = self.pin.set(Mutex::new(pin)).is_ok();
        debug_assert!(is_first, "a device has one pin");
    }

    /// The irqfd to connect to the guest's interrupt line.
    pub(super) fn line(&self) -> &EventFd {
        &self.line
    }

    /// Interrupts for returned chains.
    pub fn queue(&self) {
        self.status.fetch_or(QUEUE, Ordering::AcqRel);
        self.signal();
    }

    /// Advances the generation, by which the driver notices that the configuration space has changed.
    pub(super) fn next_generation(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Interrupts because the configuration space changed or the device needs a reset.
    pub(super) fn config(&self) {
        self.status.fetch_or(CONFIG, Ordering::AcqRel);
        self.signal();
    }

    /// Marks the device as failed until its driver resets it.
    pub(super) fn needs_reset(&self) {
        self.needs_reset.store(true, Ordering::Release);
        self.config();
    }

    pub(super) fn is_reset_needed(&self) -> bool {
        self.needs_reset.load(Ordering::Acquire)
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn status(&self) -> u32 {
        self.status.load(Ordering::Acquire)
    }

    /// Clears the reasons that the driver acknowledges.
    pub(super) fn acknowledge(&self, bits: u32) {
        self.status.fetch_and(!bits, Ordering::AcqRel);
    }

    /// Interrupts again if there is a reason: an interrupt may have been on its way when the VM was saved.
    pub(super) fn repeat(&self) {
        if self.status() != 0 {
            self.signal();
        }
    }

    /// Resets all but the generation, which must never go back.
    pub(super) fn reset(&self) {
        self.status.store(0, Ordering::Release);
        self.needs_reset.store(false, Ordering::Release);
    }

    /// Number of interrupts since the device was made.
    pub(super) fn sent(&self) -> u64 {
        self.sent.get()
    }

    fn signal(&self) {
        self.sent.add_shared(1);
        let raised = self.pin.get().is_some_and(|pin| lock(pin).pulse().is_ok());
        if !raised {
            // A write fails only if 2^64 - 2 signals are unread. One more then changes nothing.
            let _ = self.line.write(1);
        }
    }
}

/// As [`crate::persist::Persist`], but in place, because transport, worker and bus share it.
impl Interrupt {
    pub(super) fn save(&self) -> InterruptState {
        let Self { line: _, pin: _, sent: _, status, generation, needs_reset } = self;
        InterruptState {
            status: status.load(Ordering::Acquire),
            config_generation: generation.load(Ordering::Acquire),
            needs_reset: needs_reset.load(Ordering::Acquire),
        }
    }

    pub(super) fn restore(&self, state: &InterruptState) {
        let InterruptState { status, config_generation, needs_reset } = state;
        self.status.store(status & (QUEUE | CONFIG), Ordering::Release);
        self.generation.store(*config_generation, Ordering::Release);
        self.needs_reset.store(*needs_reset, Ordering::Release);
    }
}
