//! A disk at work: requests are taken from the queue and answered, at once or when the ring has finished them.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use virtio_bindings::bindings::virtio_blk::VIRTIO_BLK_F_FLUSH;

use super::Block;
use super::request;
use super::request::{Answer, Command, Limits, Status, Stretch};
use super::storage::Storage;
use super::uring;
use super::uring::{Finished, Ring};
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
        let limits = Limits { capacity: self.capacity, read_only: self.read_only };
        let (memory, queue) = (io.ram.guest(), &mut io.queues[0]);
        let mut answered = self.answer_finished(memory, queue)?;
        let (mut taken, mut next) = (0, Next::Again);
        let now = Instant::now();
        let end = now + TURN;
        if now >= self.look_again {
            self.storage.forget_len();
            self.look_again = end;
        }
        queue.hush(memory)?;
        while taken < queue.size() && (taken == 0 || Instant::now() < end) {
            if self.gate.is_closed() {
                next = Next::Wait; // for the halt, after which the queue is looked at again
                break;
            }
            if self.ring.as_ref().is_some_and(Ring::is_full) {
                next = Next::Wait; // for something to be finished
                break;
            }
            match queue.pop(memory)? {
                Some(chain) => {
                    let head = chain.head;
                    let (answer, command) = request::parse(chain, limits)?;
                    // What it costs is known now, and nothing has come of it yet.
                    let cost = command.as_ref().map_or(0, Command::bytes);
                    if let Err(at) = self.limiter.admit(Instant::now(), cost) {
                        queue.unpop();
                        next = Next::At(at);
                        break;
                    }
                    taken += 1;
                    if let Ok(command) = &command {
                        let waits = |disk: &Self| disk.waits_for_others(command, write_through);
                        answered += self.finish_while(waits, memory, queue)?;
                    }
                    if let Some(written) = self.handle(answer, command, write_through) {
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
        let submit = |ring: &mut Option<Ring>| ring.as_mut().is_none_or(Ring::submit);
        let _ = submit(&mut self.ring); // asked again below
        answered += self.answer_finished(memory, queue)?;
        if !submit(&mut self.ring) && next == Next::Wait {
            next = Next::At(Instant::now() + uring::RETRY);
        }
        if answered > 0 && queue.wants_interrupt(memory)? {
            io.interrupt.queue();
        }
        if self.gate.is_closed() && self.is_idle() {
            self.gate.tell_idle();
        }
        Ok(next)
    }

    /// Answers a request and gives how much was written, unless it is answered later.
    fn handle(
        &mut self,
        answer: Answer<'_>,
        command: Result<Command<'_>, Status>,
        write_through: bool,
    ) -> Option<usize> {
        let command = match command {
            Ok(command) => command,
            Err(status) => return Some(answer.give(status, 0)),
        };
        if let (Some(_), Command::Write { at, from }) = (&self.ring, &command) {
            self.storage.note_write(*at, from.len() as u64);
        }
        let at_once = match (&mut self.ring, &command) {
            (Some(_), Command::Write { .. }) if write_through => Some((answer, command)),
            (Some(_), Command::Flush) if self.cache == Cache::Unsafe => Some((answer, command)),
            (Some(ring), _) => ring.take(&mut *self.storage, answer, command),
            (None, _) => Some((answer, command)),
        };
        let (answer, command) = at_once?;
        let (act, done) = self.execute(command, write_through);
        let (status, filled) = self.conclude(act, &done);
        Some(answer.give(status, filled))
    }

    /// Answers what the ring has finished, and says how many that were.
    fn answer_finished(&mut self, memory: &GuestMemory, queue: &mut VirtQueue) -> Result<usize, Broken> {
        let mut answered = 0;
        while let Some(finished) = self.next_finished() {
            let (status, filled) = self.conclude(finished.act, &finished.done);
            let (head, written) = finished.give(memory, status, filled);
            queue.put(memory, head, written)?;
            answered += 1;
        }
        Ok(answered)
    }

    fn next_finished(&mut self) -> Option<Finished> {
        let Self { ring, storage, .. } = self;
        ring.as_mut()?.finished(&mut **storage)
    }

    /// Whether a request changes what another under way is only bringing to its file. A write that lands
    /// after its clusters were discarded would take place that the layer's size does not count. And whether
    /// it syncs while a flush is under way: that would wait for the flush, whose end this thread is to note.
    fn waits_for_others(&self, command: &Command<'_>, write_through: bool) -> bool {
        let is_read = matches!(command, Command::Read { .. } | Command::Name { .. });
        let syncs = matches!(command, Command::Flush) || write_through && !is_read;
        if syncs && self.ring.as_ref().is_some_and(Ring::is_flushing) {
            return true;
        }
        match command {
            Command::Write { at, from } => self.storage.is_arriving(*at, from.len() as u64),
            Command::Discard(stretches) | Command::WriteZeroes(stretches) => {
                let ring = self.ring.as_ref();
                stretches.iter().any(|Stretch { at, len, .. }| {
                    let is_written = ring.is_some_and(|ring| ring.is_writing(*at, *len));
                    is_written || self.storage.is_arriving(*at, *len)
                })
            }
            Command::Read { .. } | Command::Flush | Command::Name { .. } => false,
        }
    }

    /// Answers what the ring has under way, as long as `waits` says so, and says how much that was.
    fn finish_while(
        &mut self,
        waits: impl Fn(&Self) -> bool,
        memory: &GuestMemory,
        queue: &mut VirtQueue,
    ) -> Result<usize, Broken> {
        let mut answered = 0;
        while waits(self)
            && let Some(ring) = self.ring.as_mut().filter(|ring| !ring.is_idle())
        {
            ring.wait();
            answered += self.answer_finished(memory, queue)?;
        }
        Ok(answered)
    }

    /// Brings what the ring has under way to an end.
    pub(super) fn drain(&mut self, io: &mut Io<'_>) -> Result<(), Broken> {
        let (memory, queue) = (io.ram.guest(), &mut io.queues[0]);
        let answered = self.finish_while(|_| true, memory, queue)?;
        if answered > 0 && queue.wants_interrupt(memory)? {
            io.interrupt.queue();
        }
        self.gate.tell_idle();
        Ok(())
    }

    /// Does what a request asks for, now. Says what that was and how many bytes of data the driver got.
    fn execute(&mut self, command: Command<'_>, write_through: bool) -> (&'static str, io::Result<usize>) {
        let (act, changed) = match command {
            Command::Read { at, into } => {
                let len = into.len();
                return ("read", self.storage.read(at, into).map(|()| len));
            }
            Command::Name { into } => return ("name", Ok(request::write_name(&self.id, into))),
            Command::Flush => return ("flush", self.flush().map(|()| 0)),
            Command::Write { at, from } => ("write", self.storage.write(at, from).map(|()| 0)),
            Command::Discard(stretches) => (DISCARD, self.each(&stretches, <dyn Storage>::discard)),
            Command::WriteZeroes(stretches) => {
                ("write zeros to", self.each(&stretches, <dyn Storage>::write_zeroes))
            }
        };
        let kept = match write_through {
            true => changed.and_then(|filled| self.flush().map(|()| filled)),
            false => changed,
        };
        (act, kept)
    }

    /// What the driver is told of how an act went.
    fn conclude(&mut self, act: &str, done: &io::Result<usize>) -> (Status, usize) {
        match done {
            Ok(filled) => (Status::Done, *filled),
            Err(error) if act == DISCARD && is_not_offered(error) => (Status::Unsupported, 0),
            Err(error) => {
                self.note_failure(act, error);
                (Status::Failed, 0)
            }
        }
    }

    fn each(
        &mut self,
        stretches: &[Stretch],
        act: fn(&mut (dyn Storage + 'static), Stretch) -> io::Result<()>,
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
        self.ring.iter_mut().for_each(Ring::abandon);
        self.storage.abandon();
        self.gate.tell_idle();
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
fn is_not_offered(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidInput)
}
