//! Serves the queue of a disk: takes requests, starts them and responds to completed ones.
//!
//! ```text
//!   pop ──> parse ──> admit ──> start ──┬── executed at once ────────────────> respond
//!                                       └── UringEngine ──> next_completed ──> respond
//! ```

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use virtio_bindings::bindings::virtio_blk::VIRTIO_BLK_F_FLUSH;

use super::Block;
use super::operations::TakenRequest;
use super::request;
use super::request::{BlockRequest, DiskRange, RequestLimits, RequestStatus, Responder};
use super::storage::Storage;
use super::uring;
use super::uring::{CompletedRequest, UringEngine};
use crate::config::devices::Cache;
use crate::counters::device::DeviceCounters;
use crate::devices::virtio::queue::VirtQueue;
use crate::devices::virtio::{DeviceFailed, DeviceIo, NextTurn};
use crate::memory::own_writes::GuestMemory;

/// Name of the one operation that a host may not support.
const DISCARD: &str = "discard";
/// Longest turn. A turn ends after its current request, so that a halt or another user of the device's lock
/// does not wait for a full queue.
pub(super) const TURN: Duration = Duration::from_millis(10);

/// The number of the queue.
const REQUESTS: usize = 0;

/// The driver, which gets responses.
struct Driver<'a> {
    memory: &'a GuestMemory,
    queue: &'a mut VirtQueue,
    counters: &'a DeviceCounters,
}

impl<'a> Driver<'a> {
    fn of(io: &'a mut DeviceIo<'_>) -> Self {
        Self { memory: io.ram.guest(), queue: &mut io.queues[REQUESTS], counters: io.counters }
    }
}

impl Block {
    /// Takes requests for one turn and responds to completed ones. Not by [`DeviceIo::each_chain`]: a request
    /// in flight keeps its chain, and other requests complete meanwhile.
    pub(super) fn serve(&mut self, io: &mut DeviceIo<'_>) -> Result<NextTurn, DeviceFailed> {
        // A driver without VIRTIO_BLK_F_FLUSH relies on completed writes being safe (virtio 1.2, section
        // 5.2.6.2).
        let write_through = io.features & (1 << VIRTIO_BLK_F_FLUSH) == 0;
        let limits = RequestLimits { capacity: self.capacity, read_only: self.read_only };
        let mut driver = Driver::of(io);
        self.respond_to_completed(&mut driver)?;
        let (mut taken, mut next) = (0, NextTurn::Again);
        let now = Instant::now();
        let end = now + TURN;
        if now >= self.next_len_check {
            self.storage.forget_len();
            self.next_len_check = end;
        }
        driver.queue.disable_notifications(driver.memory)?;
        while taken < driver.queue.size() && (taken == 0 || Instant::now() < end) {
            if self.gate.is_closed() {
                next = NextTurn::Wait; // until the halt, after which the worker looks at the queue again
                break;
            }
            // The ring is as long as the queue. Only a driver that uses a descriptor twice has more requests.
            if self.uring.as_ref().is_some_and(UringEngine::is_full) {
                next = NextTurn::Wait; // until a request completes
                break;
            }
            let Some(chain) = driver.queue.next_chain(driver.memory)? else {
                next = NextTurn::Wait;
                break;
            };
            let head = chain.head;
            let (responder, request) = request::parse(chain, limits)?;
            // Parsing has no effects, so a request over the limit can go back to the queue.
            let cost = request.as_ref().map_or(0, BlockRequest::bytes);
            let now = Instant::now();
            if let Err(at) = self.limiter.admit(now, cost) {
                driver.queue.unpop();
                next = NextTurn::At(at);
                break;
            }
            if taken == 0 {
                driver.counters.turn(REQUESTS);
            }
            taken += 1;
            let begun = TakenRequest::new(&request, now);
            if let Ok(request) = &request {
                self.complete_while(|disk| disk.must_wait(request, write_through), &mut driver)?;
            }
            if let Some((status, written)) = self.start_request((responder, begun), request, write_through) {
                driver.queue.put(driver.memory, head, written)?;
                begun.ended(status, driver.counters);
            }
        }
        driver.counters.limited(REQUESTS, self.limiter.waits());
        let submit = |uring: &mut Option<UringEngine>| uring.as_mut().is_none_or(UringEngine::submit);
        let _ = submit(&mut self.uring); // submitted again below
        self.respond_to_completed(&mut driver)?;
        if !submit(&mut self.uring) && next == NextTurn::Wait {
            next = NextTurn::At(Instant::now() + uring::RETRY);
        }
        io.interrupt_for(REQUESTS)?;
        if self.gate.is_closed() && self.is_idle() {
            self.gate.notify_idle();
        }
        Ok(next)
    }

    /// Starts a request. Returns its status and the number of bytes written to the chain, or `None` if the
    /// engine completes the request later.
    fn start_request(
        &mut self,
        (responder, taken): (Responder<'_>, TakenRequest),
        request: Result<BlockRequest<'_>, RequestStatus>,
        write_through: bool,
    ) -> Option<(RequestStatus, usize)> {
        let request = match request {
            Ok(request) => request,
            Err(status) => return Some((status, responder.respond(status, 0))),
        };
        let runs_at_once = match request {
            BlockRequest::Write { .. } => write_through,
            BlockRequest::Flush => self.cache == Cache::Unsafe,
            _ => false,
        };
        if let Some(uring) = self.uring.as_mut().filter(|_| !runs_at_once)
            && let Some(prepared) = uring.prepare(&mut *self.storage, &request)
        {
            uring.enqueue(prepared, responder, taken);
            return None;
        }
        let (name, done) = self.execute(request, write_through);
        let (status, filled) = self.status_of(name, &done);
        Some((status, responder.respond(status, filled)))
    }

    /// Responds to the requests that the engine has completed.
    fn respond_to_completed(&mut self, driver: &mut Driver<'_>) -> Result<(), DeviceFailed> {
        while let Some(completed) = self.next_completed() {
            let (status, filled) = self.status_of(completed.name, &completed.done);
            let taken = completed.taken;
            let (head, written) = completed.respond(driver.memory, status, filled);
            driver.queue.put(driver.memory, head, written)?;
            taken.ended(status, driver.counters);
        }
        Ok(())
    }

    fn next_completed(&mut self) -> Option<CompletedRequest> {
        let Self { uring, storage, .. } = self;
        uring.as_mut()?.next_completed(&mut **storage)
    }

    /// Returns whether a request has to wait for requests in flight:
    ///
    /// - A change of clusters that a write in flight is adding. A write that lands after its clusters were
    ///   discarded would take space that the layer's size does not count.
    /// - A sync while a flush is in flight. The sync waits for the flush's result, which this thread
    ///   records.
    fn must_wait(&self, request: &BlockRequest<'_>, write_through: bool) -> bool {
        let is_passive = matches!(request, BlockRequest::Read { .. } | BlockRequest::GetId { .. });
        let syncs = matches!(request, BlockRequest::Flush) || write_through && !is_passive;
        if syncs && self.uring.as_ref().is_some_and(UringEngine::is_flushing) {
            return true;
        }
        match request {
            BlockRequest::Write { at, from } => self.storage.is_pending(*at, from.len() as u64),
            BlockRequest::Discard(ranges) | BlockRequest::WriteZeroes(ranges) => {
                let uring = self.uring.as_ref();
                ranges.iter().any(|DiskRange { at, len, .. }| {
                    let is_written = uring.is_some_and(|uring| uring.is_writing(*at, *len));
                    is_written || self.storage.is_pending(*at, *len)
                })
            }
            BlockRequest::Read { .. } | BlockRequest::Flush | BlockRequest::GetId { .. } => false,
        }
    }

    /// Completes requests in flight while `must_wait` is true.
    fn complete_while(
        &mut self,
        must_wait: impl Fn(&Self) -> bool,
        driver: &mut Driver<'_>,
    ) -> Result<(), DeviceFailed> {
        while must_wait(self)
            && let Some(uring) = self.uring.as_mut().filter(|uring| !uring.is_idle())
        {
            uring.wait();
            self.respond_to_completed(driver)?;
        }
        Ok(())
    }

    /// Completes and responds to all requests in flight.
    pub(super) fn drain(&mut self, io: &mut DeviceIo<'_>) -> Result<(), DeviceFailed> {
        self.complete_while(|_| true, &mut Driver::of(io))?;
        io.interrupt_for(REQUESTS)?;
        self.gate.notify_idle();
        Ok(())
    }

    /// Executes a request now. Returns the name of the operation and the bytes of data that the driver got.
    fn execute(
        &mut self,
        request: BlockRequest<'_>,
        write_through: bool,
    ) -> (&'static str, io::Result<usize>) {
        let (name, changed) = match request {
            BlockRequest::Read { at, into } => {
                let len = into.len();
                return ("read", self.storage.read(at, into).map(|()| len));
            }
            BlockRequest::GetId { into } => return ("name", Ok(request::write_name(&self.id, into))),
            BlockRequest::Flush => return ("flush", self.flush().map(|()| 0)),
            BlockRequest::Write { at, from } => ("write", self.storage.write(at, from).map(|()| 0)),
            BlockRequest::Discard(ranges) => (DISCARD, self.for_each_range(&ranges, <dyn Storage>::discard)),
            BlockRequest::WriteZeroes(ranges) => {
                ("write zeros to", self.for_each_range(&ranges, <dyn Storage>::write_zeroes))
            }
        };
        let done = match write_through {
            true => changed.and_then(|filled| self.flush().map(|()| filled)),
            false => changed,
        };
        (name, done)
    }

    /// Returns the status and the bytes of data for the driver.
    fn status_of(&mut self, name: &str, done: &io::Result<usize>) -> (RequestStatus, usize) {
        match done {
            Ok(filled) => (RequestStatus::Done, *filled),
            Err(error) if name == DISCARD && is_unsupported(error) => (RequestStatus::Unsupported, 0),
            Err(error) => {
                self.log_failure(name, error);
                (RequestStatus::Failed, 0)
            }
        }
    }

    fn for_each_range(
        &mut self,
        ranges: &[DiskRange],
        operation: fn(&mut (dyn Storage + 'static), DiskRange) -> io::Result<()>,
    ) -> io::Result<usize> {
        // The host rejects an empty range.
        let mut ranges = ranges.iter().filter(|range| range.len > 0);
        ranges.try_for_each(|range| operation(&mut *self.storage, *range))?;
        Ok(0)
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.cache {
            Cache::Writeback => self.storage.flush(),
            Cache::Unsafe => Ok(()),
        }
    }

    /// Ends requests in flight without a response.
    pub(super) fn abandon(&mut self) {
        self.uring.iter_mut().for_each(UringEngine::abandon);
        self.storage.abandon();
        self.gate.notify_idle();
    }

    /// Logs the 1st, 2nd, 4th, 8th failure and so on: a guest can cause any number of them.
    fn log_failure(&mut self, name: &str, error: &io::Error) {
        self.failures += 1;
        if self.failures.is_power_of_two() {
            log::warn!(
                "{}: cannot {name} {}: {error} (failures so far: {})",
                self.id,
                self.name,
                self.failures
            );
        }
    }
}

/// Returns whether the host does not support this discard.
fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidInput)
}
