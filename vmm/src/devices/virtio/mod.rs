//! Virtio devices (virtio 1.2): their common trait, and the transport's services for each.
//!
//! ```text
//!   vCPU threads ──registers──> Transport ──start(queues)──> Worker, a thread: Device::work(queues)
//!        │ notify (ioeventfd) ─────────────────────────────────┘    │
//!        └<─────── interrupt (the pin itself, or irqfd) ────────────┘      stop() returns the queues
//! ```
//!
//! The transport owns status, negotiation and queue registers. A device's file contains request logic alone.
//! A running device's worker owns the queues. A paused VM has no workers, so pausing is all that saving
//! needs.

pub mod device_loop;
mod failures;

use std::time::Instant;

use crate::counters::device::{DeviceCounters, DeviceOperations};
use crate::memory::ram::GuestRam;
use crate::persist::PersistBlob;
use crate::sandbox::ThreadKind;

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
pub(super) mod registers;
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
    /// The fields `used_event` and `avail_event`.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// The interface of virtio 1, not the legacy one.
    pub const VERSION_1: u64 = 1 << 32;
    /// Features that the transport provides for every device.
    pub const TRANSPORT: u64 = INDIRECT_DESC | EVENT_IDX | VERSION_1;
}

/// The driver broke a rule of the specification, or the device cannot continue. The device stops until its
/// driver resets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DeviceFailed(pub &'static str);

/// The type of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceKind {
    /// Device id (virtio 1.2, section 5).
    pub id: u32,
    /// Maximum size of each queue, a power of two.
    pub queues: &'static [u16],
}

/// Request logic of a device. Its saved state is all that the driver can observe; files and sockets come from
/// the configuration.
pub trait VirtioDevice: PersistBlob + Send + std::fmt::Debug {
    /// The type of the device.
    fn kind(&self) -> DeviceKind;

    /// The kind of the device's thread.
    fn thread(&self) -> ThreadKind {
        ThreadKind::Device
    }

    /// The operations of its driver, for [`DeviceCounters`].
    fn operations(&self) -> DeviceOperations {
        DeviceOperations::NONE
    }

    /// The feature bits that the device offers besides [`feature::TRANSPORT`].
    fn features(&self) -> u64 {
        0
    }

    /// The configuration space.
    fn config(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Handles the driver's write to the configuration space.
    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    /// Starts the device, the first time and after each pause. Adds the descriptors that wake it to `watch`.
    ///
    /// # Errors
    /// The device cannot work.
    fn begin(&mut self, _io: &mut DeviceIo<'_>, _watch: &Watch) -> Result<(), DeviceFailed> {
        Ok(())
    }

    /// Works for one turn of limited length.
    ///
    /// # Errors
    /// The driver broke the rules.
    fn work(&mut self, cause: WakeReason, io: &mut DeviceIo<'_>) -> Result<NextTurn, DeviceFailed>;

    /// Stops the device: completes requests in flight. Afterwards the device touches neither guest memory nor
    /// queues.
    ///
    /// # Errors
    /// The driver broke the rules.
    fn end(&mut self, _io: &mut DeviceIo<'_>) -> Result<(), DeviceFailed> {
        Ok(())
    }

    /// Forgets the driver's settings. Called on a stopped device.
    fn reset(&mut self) {}
}

/// Reason to wake a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// The driver notified, the time of [`NextTurn::At`] has come, or the device has just started: all queues
    /// need a look.
    Notified,
    /// A descriptor that the device watches is ready. The number is the descriptor's token.
    Ready(u64),
}

/// Time of a device's next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextTurn {
    /// After the next event.
    Wait,
    /// After the next event, or at this time.
    At(std::time::Instant),
    /// At once, because one turn was not enough.
    Again,
}

impl NextTurn {
    /// Returns the sooner of two times.
    #[must_use]
    pub fn sooner(self, other: Self) -> Self {
        match (self, other) {
            (Self::Wait, next) | (next, Self::Wait) => next,
            (Self::At(one), Self::At(other)) => Self::At(one.min(other)),
            _ => Self::Again,
        }
    }
}

/// Outcome of handling a chain in [`DeviceIo::each_chain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainOutcome {
    /// The chain goes back to the driver with this many bytes written.
    Done(usize),
    /// As [`ChainOutcome::Done`] without a byte, because the operation failed.
    Failed,
    /// As [`ChainOutcome::Done`], and the turn ends.
    DoneLast(usize, NextTurn),
    /// As [`ChainOutcome::Failed`], and the turn ends.
    FailedLast(NextTurn),
    /// The chain stays in the queue, and the turn ends.
    Kept(NextTurn),
}

/// The things that a device works with during a turn.
#[derive(Debug)]
pub struct DeviceIo<'a> {
    /// Guest memory.
    pub ram: &'a GuestRam,
    /// Queues in the device's order.
    pub queues: &'a mut [VirtQueue],
    /// The device's interrupt.
    pub interrupt: &'a Interrupt,
    /// Counts the device's work.
    pub counters: &'a DeviceCounters,
    /// The features that the driver accepted.
    pub features: u64,
    /// Set by the device when its configuration space has changed. The driver is interrupted after the turn.
    pub config_changed: bool,
}

impl DeviceIo<'_> {
    /// Answers the chains of a queue for one turn, at most as many as the queue has entries, and interrupts.
    /// `answer` returns the number of bytes that it wrote.
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

    /// As [`DeviceIo::serve`], without the interrupt. [`DeviceIo::interrupt_if_wanted`] follows.
    ///
    /// # Errors
    /// The driver broke the rules.
    pub fn serve_without_interrupt(
        &mut self,
        queue: usize,
        mut answer: impl FnMut(Chain<'_>) -> Result<usize, DeviceFailed>,
    ) -> Result<NextTurn, DeviceFailed> {
        let most = self.queues[queue].size().into();
        self.each_chain(queue, most, |chain| answer(chain).map(ChainOutcome::Done))
    }

    /// Handles at most `most` chains of a queue, without an interrupt. Stops at the first chain that is kept
    /// or is the last of its turn. [`DeviceIo::interrupt_if_wanted`] follows. Counts the chains as the
    /// operation of the queue's number.
    ///
    /// # Errors
    /// The driver broke the rules.
    pub fn each_chain(
        &mut self,
        queue: usize,
        most: usize,
        handle: impl FnMut(Chain<'_>) -> Result<ChainOutcome, DeviceFailed>,
    ) -> Result<NextTurn, DeviceFailed> {
        self.each_chain_as(queue, queue, most, handle)
    }

    /// As [`DeviceIo::each_chain`], for a queue whose number depends on the driver. Counts the chains as
    /// `operation`.
    ///
    /// # Errors
    /// The driver broke the rules.
    pub fn each_chain_as(
        &mut self,
        operation: usize,
        queue: usize,
        most: usize,
        mut handle: impl FnMut(Chain<'_>) -> Result<ChainOutcome, DeviceFailed>,
    ) -> Result<NextTurn, DeviceFailed> {
        let (memory, queue, counters) = (self.ram.guest(), &mut self.queues[queue], self.counters);
        queue.disable_notifications(memory)?;
        // The end of one chain is the beginning of the next.
        let mut began = None;
        for _ in 0..most {
            let Some(chain) = queue.next_chain(memory)? else { return Ok(NextTurn::Wait) };
            let start = *began.get_or_insert_with(|| {
                counters.turn(operation);
                Instant::now()
            });
            let (head, readable) = (chain.head, chain.readable.len());
            let outcome = handle(chain)?;
            let (written, is_done, last) = match outcome {
                ChainOutcome::Done(written) => (written, true, None),
                ChainOutcome::Failed => (0, false, None),
                ChainOutcome::DoneLast(written, next) => (written, true, Some(next)),
                ChainOutcome::FailedLast(next) => (0, false, Some(next)),
                ChainOutcome::Kept(next) => {
                    queue.unpop();
                    return Ok(next);
                }
            };
            queue.put(memory, head, written)?;
            let now = Instant::now();
            match is_done {
                true => counters.done(operation, readable + written, now - start),
                false => counters.failed(operation, now - start),
            }
            began = Some(now);
            if let Some(next) = last {
                return Ok(next);
            }
        }
        Ok(NextTurn::Again)
    }

    /// Interrupts for the returned chains of one queue, if the driver wants an interrupt.
    ///
    /// # Errors
    /// As [`VirtQueue::put`].
    pub fn interrupt_for(&mut self, queue: usize) -> Result<(), DeviceFailed> {
        if self.queues[queue].wants_interrupt(self.ram.guest())? {
            self.interrupt.queue();
        }
        Ok(())
    }

    /// Interrupts once for the returned chains of all queues, if the driver wants an interrupt.
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
