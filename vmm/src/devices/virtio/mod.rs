//! Virtio devices (virtio 1.2): what all of them are, and what the transport does for each.
//!
//! ```text
//!   vCPU threads ──registers──> Transport ──start(queues)──> Worker, a thread: Device::work(queues)
//!        │ notify (ioeventfd) ─────────────────────────────────┘    │
//!        └<─────── interrupt (the pin itself, or irqfd) ────────────┘      stop() gives the queues back
//! ```
//!
//! The transport owns status, negotiation and queue registers; a device's file holds request logic and nothing else. While
//! a device works its worker has the queues; a VM that is paused has no workers, so pausing already is saving.

pub mod device_loop;

use crate::memory::ram::GuestRam;
use crate::persist::PersistBlob;

pub mod balloon;
pub mod block;
pub mod chain;
pub mod console;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
#[cfg(feature = "fuzzing")]
mod fuzzing_hooks;
pub mod interrupt;
pub mod limiter;
pub mod listener;
#[cfg(test)]
mod mirror;
pub mod net;
pub mod queue;
mod registers;
pub mod rng;
#[cfg(test)]
pub(crate) mod testing;
pub mod transport;
pub mod view;
pub mod vsock;
pub mod watch;

use chain::Chain;
use interrupt::Interrupt;
use queue::VirtQueue;
use watch::Watch;

/// `VIRTIO_F_*` (virtio 1.2, section 6), as bits.
pub mod feature {
    /// Indirect descriptors.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// `used_event` and `avail_event`.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// Not the legacy interface.
    pub const VERSION_1: u64 = 1 << 32;
    /// What the transport does for every device.
    pub const TRANSPORT: u64 = INDIRECT_DESC | EVENT_IDX | VERSION_1;
}

/// The driver broke a rule of the specification, or the device can go on no more. The device stops until it is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DeviceFailed(pub &'static str);

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceKind {
    /// Its number (virtio 1.2, section 5).
    pub id: u32,
    /// The most entries of each of its queues, powers of two.
    pub queues: &'static [u16],
}

/// Request logic. The state is what the driver can tell apart; what the device was made from is not state.
pub trait VirtioDevice: PersistBlob + Send + std::fmt::Debug {
    /// What it is.
    fn kind(&self) -> DeviceKind;

    /// The feature bits it offers beside [`feature::TRANSPORT`].
    fn features(&self) -> u64 {
        0
    }

    /// Its configuration space.
    fn config(&self) -> Vec<u8> {
        Vec::new()
    }

    /// The driver writes to its configuration space.
    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    /// Begins to work, at first and after each pause. Says on `watch` what else to wake up for.
    ///
    /// # Errors
    /// It cannot work.
    fn begin(&mut self, _io: &mut DeviceIo<'_>, _watch: &Watch) -> Result<(), DeviceFailed> {
        Ok(())
    }

    /// Does what there is to do, for a while.
    ///
    /// # Errors
    /// The driver broke the rules.
    fn work(&mut self, cause: WakeReason, io: &mut DeviceIo<'_>) -> Result<NextTurn, DeviceFailed>;

    /// Stops working: brings what is under way to an end, after which nothing touches guest memory or the queues.
    ///
    /// # Errors
    /// The driver broke the rules.
    fn end(&mut self, _io: &mut DeviceIo<'_>) -> Result<(), DeviceFailed> {
        Ok(())
    }

    /// Forgets all that the driver told it. It is not working.
    fn reset(&mut self) {}
}

/// Why a device is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// The driver notified, time has come, or it has just begun: every queue is to be looked at.
    Notified,
    /// A descriptor that it watches is ready; the number is the one it gave.
    Ready(u64),
}

/// When to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextTurn {
    /// When something happens.
    Wait,
    /// At this time at the latest.
    At(std::time::Instant),
    /// At once: there is more to do than for one turn.
    Again,
}

/// What a device works on.
#[derive(Debug)]
pub struct DeviceIo<'a> {
    /// Guest memory.
    pub ram: &'a GuestRam,
    /// In the device's order.
    pub queues: &'a mut [VirtQueue],
    /// How the guest hears of it.
    pub interrupt: &'a Interrupt,
    /// The features that the driver took.
    pub features: u64,
    /// The device sets this when its configuration space has changed: the driver is interrupted for it after the turn.
    pub config_changed: bool,
}

impl DeviceIo<'_> {
    /// Answers what a queue holds, for one turn of at most as many chains as it has entries, and interrupts. `answer` gives how
    /// many bytes it wrote.
    ///
    /// # Errors
    /// The driver broke the rules.
    pub fn serve(
        &mut self,
        queue: usize,
        answer: impl FnMut(Chain<'_>) -> Result<usize, DeviceFailed>,
    ) -> Result<NextTurn, DeviceFailed> {
        let next = self.serve_without_interrupt(queue, answer)?;
        self.interrupt_if_wanted()?;
        Ok(next)
    }

    /// The same without an interrupt: there is more to come before [`DeviceIo::interrupt_if_wanted`].
    ///
    /// # Errors
    /// The driver broke the rules.
    pub fn serve_without_interrupt(
        &mut self,
        queue: usize,
        mut answer: impl FnMut(Chain<'_>) -> Result<usize, DeviceFailed>,
    ) -> Result<NextTurn, DeviceFailed> {
        let (memory, queue) = (self.ram.guest(), &mut self.queues[queue]);
        queue.disable_notifications(memory)?;
        for _ in 0..queue.size() {
            let Some(chain) = queue.next_chain(memory)? else { return Ok(NextTurn::Wait) };
            let head = chain.head;
            let written = answer(chain)?;
            queue.put(memory, head, written)?;
        }
        Ok(NextTurn::Again)
    }

    /// Interrupts for the chains that one queue gave back, if the driver wants that.
    ///
    /// # Errors
    /// As [`VirtQueue::put`].
    pub fn interrupt_for(&mut self, queue: usize) -> Result<(), DeviceFailed> {
        if self.queues[queue].wants_interrupt(self.ram.guest())? {
            self.interrupt.queue();
        }
        Ok(())
    }

    /// One interrupt for all that the queues gave back, if the driver wants one.
    ///
    /// # Errors
    /// As [`VirtQueue::put`].
    pub fn interrupt_if_wanted(&mut self) -> Result<(), DeviceFailed> {
        let memory = self.ram.guest();
        let mut wanted = false;
        for queue in &mut *self.queues {
            wanted |= queue.wants_interrupt(memory)?;
        }
        if wanted {
            self.interrupt.queue();
        }
        Ok(())
    }
}
