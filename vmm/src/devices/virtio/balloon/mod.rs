//! The balloon (virtio 1.2, section 5.5): the guest returns memory to the host, in three ways.
//!
//! ```text
//!  host: set_target ──num_pages──> driver ──page numbers──> inflate queue ──┐
//!                                  driver <── deflate: it takes them again  ├──> memory::reclaim
//!  driver by itself: free pages ─────────────────────────> reporting queue ─┤
//!  host: start_hinting ──command──> driver ──free pages──> hinting queue ───┘
//! ```
//!
//! The content of a returned page is lost, unless the driver touches the page first. A returned page reads as
//! zero, or as the base of a clone has it. Page poisoning promises a certain content, so the device does not
//! offer it.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::chain::Chain;
use super::{ChainOutcome, DeviceFailed, DeviceIo, DeviceKind, NextTurn, VirtioDevice, WakeReason};
use crate::config::devices::{BalloonConfig, balloon_pages};
use crate::counters::device::{DeviceOperations, OperationKind};
use crate::error::{Error, Result};
use crate::memory::PAGE;
use crate::persist::Persist;

mod hinting;
mod pages;
mod statistics;

pub use hinting::Hinting;
use pages::{PFN, Pages};
pub use statistics::Statistics;

/// Feature bits (virtio 1.2, section 5.5.3).
mod feature {
    pub const STATS_VQ: u64 = 1 << 1;
    pub const DEFLATE_ON_OOM: u64 = 1 << 2;
    pub const FREE_PAGE_HINT: u64 = 1 << 3;
    pub const REPORTING: u64 = 1 << 5;
    /// Features with a queue, in the order of the queues.
    pub const WITH_QUEUE: [u64; 3] = [STATS_VQ, FREE_PAGE_HINT, REPORTING];
}

/// Sizes of the inflate queue, the deflate queue, and one queue for each feature with a queue.
const QUEUES: [u16; 5] = [256, 256, 64, 64, 64];
const INFLATE: usize = 0;
const DEFLATE: usize = 1;
/// Operations as the counters name them. The first two have the numbers of their queues.
const OPERATIONS: &[OperationKind] = &[
    OperationKind::without_data("inflate"),
    OperationKind::without_data("deflate"),
    OperationKind::new("statistics"),
    OperationKind::without_data("hint"),
    OperationKind::without_data("report"),
];
const STATISTICS: usize = 2;
const HINT: usize = 3;
const REPORT: usize = 4;
/// Offset in the configuration space at which the driver writes the number of pages it has given.
const ACTUAL: u64 = 4;
const PAGES_PER_MIB: u64 = (1 << 20) / PAGE;
/// Most page numbers of one turn, and most buffers without the last chain's. Each may be a system call.
const PFNS_PER_TURN: usize = 8192;
const BUFFERS_PER_TURN: usize = 1024;

/// The device.
#[derive(Debug)]
pub struct Balloon {
    // Configuration.
    features: u64,
    interval: Duration,
    memory_mib: u64,
    // Glue.
    pages: Pages,
    /// Time of the next request for statistics.
    due: Option<Instant>,
    /// The driver's buffer for statistics. Returning it requests the next ones. A halted device has put it
    /// back into the queue.
    held: Option<u16>,
    /// Number of returned pages of the first list in the inflate queue. Returning a page twice is harmless.
    begun: usize,
    // Volatile.
    target: u32,
    actual: u32,
    hinting: Hinting,
    statistics: Option<Statistics>,
}

/// The state that the driver can see, and the statistics, so that they are available right after a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BalloonState {
    target_pages: u32,
    actual_pages: u32,
    hinting: Hinting,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    statistics: Option<Statistics>,
}

impl Balloon {
    /// Makes a balloon for a guest with `memory_mib` MiB.
    ///
    /// # Errors
    /// [`Error::Config`] for a target above the guest's memory.
    pub fn new(config: &BalloonConfig, memory_mib: u64) -> Result<Self> {
        let BalloonConfig { target_mib, deflate_on_oom, statistics_interval, reporting, hinting } = config;
        let offered = [
            (feature::STATS_VQ, *statistics_interval > 0),
            (feature::DEFLATE_ON_OOM, *deflate_on_oom),
            (feature::FREE_PAGE_HINT, *hinting),
            (feature::REPORTING, *reporting),
        ];
        let mut balloon = Self {
            features: offered.iter().filter(|(_, offered)| *offered).map(|(feature, _)| feature).sum(),
            interval: Duration::from_secs((*statistics_interval).into()),
            memory_mib,
            pages: Pages::default(),
            due: None,
            held: None,
            begun: 0,
            target: 0,
            actual: 0,
            hinting: Hinting::new(),
            statistics: None,
        };
        balloon.set_target(*target_mib)?;
        Ok(balloon)
    }

    /// Asks the guest for `mib` MiB in all. The caller then tells the driver that the configuration changed.
    ///
    /// # Errors
    /// [`Error::Config`] if `mib` is more than the guest's memory.
    pub fn set_target(&mut self, mib: u64) -> Result<()> {
        self.target = balloon_pages(mib, self.memory_mib)?;
        Ok(())
    }

    /// The target in MiB.
    #[must_use]
    pub fn target(&self) -> u64 {
        u64::from(self.target) / PAGES_PER_MIB
    }

    /// Memory that the guest says it has given, in MiB.
    #[must_use]
    pub fn actual(&self) -> u64 {
        u64::from(self.actual) / PAGES_PER_MIB
    }

    /// The guest's last statistics.
    #[must_use]
    pub fn statistics(&self) -> Option<Statistics> {
        self.statistics
    }

    /// Number of pages returned to the host since this device was made, in all three ways.
    #[must_use]
    pub fn returned_pages(&self) -> u64 {
        self.pages.returned
    }

    /// Number of pages named by the guest that cannot be returned.
    #[must_use]
    pub fn ignored_pages(&self) -> u64 {
        self.pages.ignored
    }

    /// Asks the guest for all its free pages, once. It may not reuse them before [`Balloon::stop_hinting`] if
    /// `keeps_pages`. The caller then tells the driver that the configuration changed.
    ///
    /// A page that the guest reuses before its hint is handled loses the guest's writes. Linux does that when
    /// memory is very short. Reporting has no such window.
    ///
    /// # Errors
    /// [`Error::Config`] if the balloon was made without hinting.
    pub fn start_hinting(&mut self, keeps_pages: bool) -> Result<()> {
        self.check_hinting()?;
        self.hinting.start(keeps_pages);
        Ok(())
    }

    /// Lets the guest reuse the pages of its hints. The caller then tells the driver that the configuration
    /// changed.
    ///
    /// # Errors
    /// As [`Balloon::start_hinting`].
    pub fn stop_hinting(&mut self) -> Result<()> {
        self.check_hinting()?;
        self.hinting.stop();
        Ok(())
    }

    /// Asks for statistics at once, and then every `seconds`. The caller then wakes the device.
    ///
    /// # Errors
    /// [`Error::Config`] if this would turn statistics on or off, which the driver learnt at its start.
    pub fn set_interval(&mut self, seconds: u16) -> Result<()> {
        match (self.features & feature::STATS_VQ, seconds) {
            (0, 0) => {}
            (0, _) => {
                let problem = "this VM's balloon was created without statistics";
                return Err(Error::config("balloon statistics", problem));
            }
            (_, 0) => {
                let problem = "0 turns them off, which a running VM cannot do; give 1 or more";
                return Err(Error::config("balloon statistics", problem));
            }
            (_, seconds) => {
                self.interval = Duration::from_secs(seconds.into());
                self.due = Some(Instant::now());
            }
        }
        Ok(())
    }

    /// Progress of hinting.
    ///
    /// # Errors
    /// As [`Balloon::start_hinting`].
    pub fn hinting(&self) -> Result<Hinting> {
        self.check_hinting()?;
        Ok(self.hinting)
    }

    fn check_hinting(&self) -> Result<()> {
        match self.features & feature::FREE_PAGE_HINT {
            0 => Err(Error::config("balloon hinting", "this VM's balloon was created without hinting")),
            _ => Ok(()),
        }
    }

    /// Takes a turn of the inflate queue. A list that takes more than one turn stays in the queue until it is
    /// done.
    fn inflate(&mut self, io: &mut DeviceIo<'_>) -> std::result::Result<NextTurn, DeviceFailed> {
        let Self { pages, begun, .. } = self;
        let (ram, before) = (io.ram, pages.returned);
        let mut left = PFNS_PER_TURN;
        let next = serve(io, INFLATE, INFLATE, |chain| {
            let mut list = chain.readable;
            list.take(*begun * PFN);
            let (all, odd) = (list.len() / PFN, !list.len().is_multiple_of(PFN));
            let now = all.min(left);
            left -= now;
            pages.listed(ram, list.take(now * PFN));
            if now < all {
                *begun += now;
                return Ok(ChainOutcome::Kept(NextTurn::Again));
            }
            *begun = 0;
            pages.ignored += u64::from(odd);
            Ok(outcome_with_left(left))
        });
        io.counters.add_bytes(INFLATE, (pages.returned - before) * PAGE);
        next
    }

    /// Takes a turn of a queue with buffers of free pages: the reporting queue, or the hinting queue. In the
    /// hinting queue the driver also names the request that it answers.
    fn take_free_pages(
        &mut self,
        io: &mut DeviceIo<'_>,
        queue: usize,
        hints: bool,
    ) -> std::result::Result<NextTurn, DeviceFailed> {
        let Self { pages, hinting, .. } = self;
        let (ram, before) = (io.ram, pages.returned);
        let (mut left, mut has_ended) = (BUFFERS_PER_TURN, false);
        let operation = if hints { HINT } else { REPORT };
        let done = serve(io, operation, queue, |mut chain| {
            if hints && !chain.readable.is_empty() {
                has_ended |= hinting.hear(u32::from_le(chain.readable.read_value()?));
            }
            if !hints || hinting.is_hinting() {
                left = left.saturating_sub(pages.buffers(ram, &chain.writable));
            }
            Ok(outcome_with_left(left))
        });
        io.counters.add_bytes(operation, (pages.returned - before) * PAGE);
        io.config_changed |= has_ended;
        done
    }

    /// Reads statistics that have come, and requests new ones when they are due.
    fn look_at_statistics(
        &mut self,
        io: &mut DeviceIo<'_>,
        queue: usize,
    ) -> std::result::Result<NextTurn, DeviceFailed> {
        let memory = io.ram.guest();
        if self.held.is_none()
            && let Some(mut chain) = io.queues[queue].next_chain(memory)?
        {
            let (bytes, began) = (chain.readable.len(), Instant::now());
            self.statistics = Some(Statistics::read(&mut chain.readable));
            io.counters.turn(STATISTICS);
            io.counters.done(STATISTICS, bytes, began.elapsed());
            self.held = Some(chain.head);
        }
        let now = Instant::now();
        let due = *self.due.get_or_insert(now + self.interval);
        if now < due {
            return Ok(NextTurn::At(due));
        }
        if let Some(head) = self.held.take() {
            io.queues[queue].put(memory, head, 0)?;
            io.interrupt_for(queue)?;
            if io.queues[queue].enable_notifications(memory)? {
                self.due = Some(now + self.interval);
                return Ok(NextTurn::Again);
            }
        }
        self.due = Some(now + self.interval);
        Ok(NextTurn::At(now + self.interval))
    }
}

/// Returns a chain to the driver. The turn ends if nothing is `left` of its limit.
fn outcome_with_left(left: usize) -> ChainOutcome {
    if left == 0 { ChainOutcome::DoneLast(0, NextTurn::Again) } else { ChainOutcome::Done(0) }
}

/// Handles the chains of a queue for one turn, and interrupts.
fn serve(
    io: &mut DeviceIo<'_>,
    operation: usize,
    queue: usize,
    handle: impl FnMut(Chain<'_>) -> std::result::Result<ChainOutcome, DeviceFailed>,
) -> std::result::Result<NextTurn, DeviceFailed> {
    let next = io.each_chain_as(operation, queue, io.queues[queue].size().into(), handle)?;
    io.interrupt_for(queue)?;
    Ok(next)
}

/// Index of the queue of a feature that the driver accepted. Linux does not count the queues of other
/// features, although virtio 1.2, section 5.5.2, numbers them. Other VMMs follow Linux.
fn queue_of(feature: u64, taken: u64) -> Option<usize> {
    let before = feature::WITH_QUEUE.iter().filter(|other| **other < feature && taken & **other != 0).count();
    (taken & feature != 0).then_some(DEFLATE + 1 + before)
}

impl VirtioDevice for Balloon {
    fn kind(&self) -> DeviceKind {
        let more = feature::WITH_QUEUE.iter().filter(|feature| self.features & **feature != 0).count();
        DeviceKind { id: 5, queues: &QUEUES[..DEFLATE + 1 + more] }
    }

    fn operations(&self) -> DeviceOperations {
        DeviceOperations { operations: OPERATIONS, queues: None }
    }

    fn features(&self) -> u64 {
        self.features
    }

    fn config(&self) -> Vec<u8> {
        [self.target, self.actual, self.hinting.host_cmd]
            .iter()
            .flat_map(|field| field.to_le_bytes())
            .collect()
    }

    fn write_config(&mut self, offset: u64, data: &[u8]) {
        let mut actual = self.actual.to_le_bytes();
        for (at, byte) in data.iter().enumerate() {
            let within = offset.checked_add(at as u64).and_then(|at| at.checked_sub(ACTUAL));
            if let Some(place) = within.and_then(|within| actual.get_mut(within as usize)) {
                *place = *byte;
            }
        }
        self.actual = u32::from_le_bytes(actual);
    }

    fn work(&mut self, _: WakeReason, io: &mut DeviceIo<'_>) -> std::result::Result<NextTurn, DeviceFailed> {
        let taken = io.features;
        let mut next = self.inflate(io)?.sooner(io.serve(DEFLATE, |_| Ok(0))?);
        if let Some(queue) = queue_of(feature::FREE_PAGE_HINT, taken) {
            next = next.sooner(self.take_free_pages(io, queue, true)?);
        }
        if let Some(queue) = queue_of(feature::REPORTING, taken) {
            next = next.sooner(self.take_free_pages(io, queue, false)?);
        }
        if let Some(queue) = queue_of(feature::STATS_VQ, taken) {
            next = next.sooner(self.look_at_statistics(io, queue)?);
        }
        Ok(next)
    }

    /// Puts the buffer for statistics back into the queue, where the next start finds it.
    fn end(&mut self, io: &mut DeviceIo<'_>) -> std::result::Result<(), DeviceFailed> {
        if let (Some(_), Some(queue)) = (self.held.take(), queue_of(feature::STATS_VQ, io.features)) {
            io.queues[queue].unpop();
        }
        self.due = None;
        Ok(())
    }

    fn reset(&mut self) {
        (self.due, self.held, self.begun) = (None, None, 0);
        (self.actual, self.statistics) = (0, None);
        self.hinting.reset();
    }
}

impl Persist for Balloon {
    type State = BalloonState;

    fn save(&self) -> Result<BalloonState> {
        let Self {
            features: _,
            interval: _,
            memory_mib: _,
            pages: _,
            due: _,
            held: _,
            begun: _,
            target,
            actual,
            hinting,
            statistics,
        } = self;
        Ok(BalloonState {
            target_pages: *target,
            actual_pages: *actual,
            hinting: *hinting,
            statistics: *statistics,
        })
    }

    fn restore(&mut self, state: &BalloonState) -> Result<()> {
        let BalloonState { target_pages, actual_pages, hinting, statistics } = state;
        self.set_target(u64::from(*target_pages) / PAGES_PER_MIB)?;
        self.actual = *actual_pages;
        self.hinting = *hinting;
        self.statistics = *statistics;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
