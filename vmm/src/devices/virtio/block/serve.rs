//! A disk at work: requests are taken from the queue and answered, at once or when the engine has completed them.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use virtio_bindings::bindings::virtio_blk::VIRTIO_BLK_F_FLUSH;

use super::Block;
use super::request;
use super::request::{BlockRequest, DiskRange, RequestLimits, RequestStatus, Responder};
use super::storage::Storage;
use super::uring;
use super::uring::{CompletedRequest, UringEngine};
use crate::config::devices::Cache;
use crate::devices::virtio::queue::VirtQueue;
use crate::devices::virtio::{Broken, Io, Next};
use crate::memory::own_writes::GuestMemory;

/// What the host may have no way to do.
const DISCARD: &str = "discard";
/// After this long a turn ends with the request at hand: whoever wants the device to stop, or its lock, is not to wait for all
/// that a queue can hold.
pub(super) const TURN: Duration = Duration::from_millis(10);

impl Block {
    /// Takes requests for one turn, and answers what is done.
    pub(super) fn serve(&mut self, io: &mut Io<'_>) -> Result<Next, Broken> {
        // A driver that cannot flush takes what is written for safe (virtio 1.2, section 5.2.6.2).
        let write_through = io.features & (1 << VIRTIO_BLK_F_FLUSH) == 0;
        let limits = RequestLimits { capacity: self.capacity, read_only: self.read_only };
        let (memory, queue) = (io.ram.guest(), &mut io.queues[0]);
        let mut answered = self.respond_to_completed(memory, queue)?;
        let (mut taken, mut next) = (0, Next::Again);
        let now = Instant::now();
        let end = now + TURN;
        if now >= self.next_len_check {
            self.storage.forget_len();
            self.next_len_check = end;
        }
        queue.hush(memory)?;
        while taken < queue.size() && (taken == 0 || Instant::now() < end) {
            if self.gate.is_closed() {
                next = Next::Wait; // for the halt, after which the queue is looked at again
                break;
            }
            if self.uring.as_ref().is_some_and(UringEngine::is_full) {
                next = Next::Wait; // for something to be completed
                break;
            }
            match queue.pop(memory)? {
                Some(chain) => {
                    let head = chain.head;
                    let (responder, request) = request::parse(chain, limits)?;
                    // What it costs is known now, and nothing has come of it yet.
                    let cost = request.as_ref().map_or(0, BlockRequest::bytes);
                    if let Err(at) = self.limiter.admit(Instant::now(), cost) {
                        queue.unpop();
                        next = Next::At(at);
                        break;
                    }
                    taken += 1;
                    if let Ok(request) = &request {
                        let waits = |disk: &Self| disk.must_wait(request, write_through);
                        answered += self.complete_while(waits, memory, queue)?;
                    }
                    if let Some(written) = self.start_request(responder, request, write_through) {
                        queue.put(memory, head, written)?;
                        answered += 1;
                    }
                }
                None if queue.listen(memory)? => queue.hush(memory)?,
                None => {
                    next = Next::Wait;
                    break;
                }
            }
        }
        let submit = |uring: &mut Option<UringEngine>| uring.as_mut().is_none_or(UringEngine::submit);
        let _ = submit(&mut self.uring); // asked again below
        answered += self.respond_to_completed(memory, queue)?;
        if !submit(&mut self.uring) && next == Next::Wait {
            next = Next::At(Instant::now() + uring::RETRY);
        }
        if answered > 0 && queue.wants_interrupt(memory)? {
            io.interrupt.queue();
        }
        if self.gate.is_closed() && self.is_idle() {
            self.gate.notify_idle();
        }
        Ok(next)
    }

    /// Answers a request and gives how much was written, unless it is answered later.
    fn start_request(
        &mut self,
        responder: Responder<'_>,
        request: Result<BlockRequest<'_>, RequestStatus>,
        write_through: bool,
    ) -> Option<usize> {
        let request = match request {
            Ok(request) => request,
            Err(status) => return Some(responder.respond(status, 0)),
        };
        if let (Some(_), BlockRequest::Write { at, from }) = (&self.uring, &request) {
            self.storage.log_write(*at, from.len() as u64);
        }
        let at_once = match (&mut self.uring, &request) {
            (Some(_), BlockRequest::Write { .. }) if write_through => Some((responder, request)),
            (Some(_), BlockRequest::Flush) if self.cache == Cache::Unsafe => Some((responder, request)),
            (Some(uring), _) => uring.submit_or_return(&mut *self.storage, responder, request),
            (None, _) => Some((responder, request)),
        };
        let (responder, request) = at_once?;
        let (act, done) = self.execute(request, write_through);
        let (status, filled) = self.status_of(act, &done);
        Some(responder.respond(status, filled))
    }

    /// Answers what the engine has completed, and says how many that were.
    fn respond_to_completed(&mut self, memory: &GuestMemory, queue: &mut VirtQueue) -> Result<usize, Broken> {
        let mut answered = 0;
        while let Some(completed) = self.next_completed() {
            let (status, filled) = self.status_of(completed.act, &completed.done);
            let (head, written) = completed.respond(memory, status, filled);
            queue.put(memory, head, written)?;
            answered += 1;
        }
        Ok(answered)
    }

    fn next_completed(&mut self) -> Option<CompletedRequest> {
        let Self { uring, storage, .. } = self;
        uring.as_mut()?.next_completed(&mut **storage)
    }

    /// Whether a request changes what another under way is only bringing to its file. A write that lands
    /// after its clusters were discarded would take place that the layer's size does not count. And whether
    /// it syncs while a flush is under way: that would wait for the flush, whose end this thread is to note.
    fn must_wait(&self, request: &BlockRequest<'_>, write_through: bool) -> bool {
        let is_read = matches!(request, BlockRequest::Read { .. } | BlockRequest::GetId { .. });
        let syncs = matches!(request, BlockRequest::Flush) || write_through && !is_read;
        if syncs && self.uring.as_ref().is_some_and(UringEngine::is_flushing) {
            return true;
        }
        match request {
            BlockRequest::Write { at, from } => self.storage.is_pending(*at, from.len() as u64),
            BlockRequest::Discard(stretches) | BlockRequest::WriteZeroes(stretches) => {
                let uring = self.uring.as_ref();
                stretches.iter().any(|DiskRange { at, len, .. }| {
                    let is_written = uring.is_some_and(|uring| uring.is_writing(*at, *len));
                    is_written || self.storage.is_pending(*at, *len)
                })
            }
            BlockRequest::Read { .. } | BlockRequest::Flush | BlockRequest::GetId { .. } => false,
        }
    }

    /// Answers what the engine has under way, as long as `waits` says so, and says how much that was.
    fn complete_while(
        &mut self,
        waits: impl Fn(&Self) -> bool,
        memory: &GuestMemory,
        queue: &mut VirtQueue,
    ) -> Result<usize, Broken> {
        let mut answered = 0;
        while waits(self)
            && let Some(uring) = self.uring.as_mut().filter(|uring| !uring.is_idle())
        {
            uring.wait();
            answered += self.respond_to_completed(memory, queue)?;
        }
        Ok(answered)
    }

    /// Brings what the engine has under way to an end.
    pub(super) fn drain(&mut self, io: &mut Io<'_>) -> Result<(), Broken> {
        let (memory, queue) = (io.ram.guest(), &mut io.queues[0]);
        let answered = self.complete_while(|_| true, memory, queue)?;
        if answered > 0 && queue.wants_interrupt(memory)? {
            io.interrupt.queue();
        }
        self.gate.notify_idle();
        Ok(())
    }

    /// Does what a request asks for, now. Says what that was and how many bytes of data the driver got.
    fn execute(
        &mut self,
        request: BlockRequest<'_>,
        write_through: bool,
    ) -> (&'static str, io::Result<usize>) {
        let (act, changed) = match request {
            BlockRequest::Read { at, into } => {
                let len = into.len();
                return ("read", self.storage.read(at, into).map(|()| len));
            }
            BlockRequest::GetId { into } => return ("name", Ok(request::write_name(&self.id, into))),
            BlockRequest::Flush => return ("flush", self.flush().map(|()| 0)),
            BlockRequest::Write { at, from } => ("write", self.storage.write(at, from).map(|()| 0)),
            BlockRequest::Discard(stretches) => {
                (DISCARD, self.for_each_range(&stretches, <dyn Storage>::discard))
            }
            BlockRequest::WriteZeroes(stretches) => {
                ("write zeros to", self.for_each_range(&stretches, <dyn Storage>::write_zeroes))
            }
        };
        let kept = match write_through {
            true => changed.and_then(|filled| self.flush().map(|()| filled)),
            false => changed,
        };
        (act, kept)
    }

    /// What the driver is told of how an act went.
    fn status_of(&mut self, act: &str, done: &io::Result<usize>) -> (RequestStatus, usize) {
        match done {
            Ok(filled) => (RequestStatus::Done, *filled),
            Err(error) if act == DISCARD && is_unsupported(error) => (RequestStatus::Unsupported, 0),
            Err(error) => {
                self.note_failure(act, error);
                (RequestStatus::Failed, 0)
            }
        }
    }

    fn for_each_range(
        &mut self,
        stretches: &[DiskRange],
        act: fn(&mut (dyn Storage + 'static), DiskRange) -> io::Result<()>,
    ) -> io::Result<usize> {
        // The host has no name for a stretch of nothing.
        let mut stretches = stretches.iter().filter(|stretch| stretch.len > 0);
        stretches.try_for_each(|stretch| act(&mut *self.storage, *stretch))?;
        Ok(0)
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.cache {
            Cache::Writeback => self.storage.flush(),
            Cache::Unsafe => Ok(()),
        }
    }

    /// Brings what is under way to an end, unanswered.
    pub(super) fn abandon(&mut self) {
        self.uring.iter_mut().for_each(UringEngine::abandon);
        self.storage.abandon();
        self.gate.notify_idle();
    }

    /// A line in the log for the 1st, 2nd, 4th, 8th failure and so on: a guest can make as many as it likes.
    fn note_failure(&mut self, act: &str, error: &io::Error) {
        self.failures += 1;
        if self.failures.is_power_of_two() {
            log::warn!(
                "{}: cannot {act} {}: {error} (failures so far: {})",
                self.id,
                self.name,
                self.failures
            );
        }
    }
}

/// Whether the host has no way to discard this.
fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidInput)
}
