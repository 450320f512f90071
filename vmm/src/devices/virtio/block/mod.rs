//! Disks (virtio 1.2, section 5.2): one queue of requests, answered from files of the host.
//!
//! ```text
//!   chain ──request──> Command ──Block──> Storage: HostFile, a raw image or block device
//!                                    │             Overlay, a layer over one
//!                                    │             or Ring, which has many under way
//!                                    └──> status, the last byte that the chain has room for
//! ```

use std::fs::File;
use std::io::{self, ErrorKind};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use virtio_bindings::bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX,
    VIRTIO_BLK_F_WRITE_ZEROES,
};
use vm_memory::GuestMemoryMmap;

use super::queue::VirtQueue;
use super::worker::Watch;
use super::{Broken, Cause, Io, Kind, Next, VirtioDevice};
use crate::config::devices::{Cache, DiskConfig, Engine};
use crate::error::{Error, Result};
use crate::persist::Persist;

mod digest;
mod file;
mod layer;
mod map;
mod request;
mod ring;
mod storage;
#[cfg(test)]
mod tests;

use file::{HostFile, Use};
use layer::Overlay;
use request::{Answer, Command, Limits, SECTOR, Status, Stretch};
use ring::Ring;
use storage::Storage;

/// Requests at a time.
const QUEUE: u16 = 256;
/// Pieces of data that a request may have: what else its chain holds are the header and the status.
const SEG_MAX: u32 = QUEUE as u32 - 2;
/// Bytes of the configuration space, up to what secure erase would add.
const CONFIG_LEN: usize = 60;
/// What the host may have no way to do.
const DISCARD: &str = "discard";

/// The device.
#[derive(Debug)]
pub struct Block {
    // Configuration.
    id: String,
    /// The file that is written, as the user named it.
    name: String,
    read_only: bool,
    cache: Cache,
    // Glue.
    storage: Box<dyn Storage>,
    /// Does reads, writes and flushes where there is one.
    ring: Option<Ring>,
    /// Requests that the host let fail.
    failures: u64,
    // Volatile.
    /// Sectors that the driver was told of.
    capacity: u64,
}

/// What of it the driver can see.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockState {
    capacity: u64,
    read_only: bool,
}

impl Block {
    /// Opens a disk's files and locks them against others.
    ///
    /// # Errors
    /// A file is missing, used by another, too short, or not of a kind that a disk can be made from.
    pub fn open(config: &DiskConfig) -> Result<Self> {
        let DiskConfig { id, path, read_only, cache, engine, layer, limit: _ } = config;
        let mut ring = None;
        let storage: Box<dyn Storage> = match layer {
            None => {
                let wanted = if *read_only { Use::Read } else { Use::Write };
                let file = HostFile::open(id, path, wanted)?;
                if *engine == Engine::IoUring {
                    ring = Some(Ring::new(&file, QUEUE)?);
                }
                Box::new(file)
            }
            Some(layer) => {
                let wanted = if *read_only { Use::Read } else { Use::Make };
                if *engine == Engine::IoUring {
                    log::info!("{id}: a disk with a layer uses the engine sync, not io_uring");
                }
                Box::new(Overlay::open(id, path, layer, wanted, *cache)?)
            }
        };
        let mut disk = Self {
            id: id.clone(),
            name: layer.as_ref().unwrap_or(path).to_string(),
            read_only: *read_only,
            cache: *cache,
            storage,
            ring,
            failures: 0,
            capacity: 0,
        };
        disk.capacity = disk.sectors()?;
        Ok(disk)
    }

    /// Sees how long the file is now. True when the driver is to be told of it: its configuration has changed.
    ///
    /// # Errors
    /// The file is gone or has not even a sector.
    pub fn resize(&mut self) -> Result<bool> {
        let capacity = self.sectors()?;
        Ok(std::mem::replace(&mut self.capacity, capacity) != capacity)
    }

    /// The layer's file, if the disk has one. While the device does not work, all that the guest wrote is in it, and a copy of
    /// it is a layer over the same base.
    #[must_use]
    pub fn layer(&self) -> Option<&File> {
        self.storage.layer()
    }

    /// Whole sectors that there are.
    fn sectors(&self) -> Result<u64> {
        let len = self.storage.len().map_err(|source| Error::file("look at disk", &self.name, source))?;
        match len / SECTOR {
            0 => {
                let problem =
                    format!("{}: {} has {len} bytes; a disk needs a sector of {SECTOR}", self.id, self.name);
                Err(Error::config("disks", problem))
            }
            sectors => Ok(sectors),
        }
    }

    /// Takes requests for one turn, and answers what is done.
    fn serve(&mut self, io: &mut Io<'_>) -> std::result::Result<Next, Broken> {
        // A driver that cannot flush takes what is written for safe (virtio 1.2, section 5.2.6.2).
        let write_through = io.features & (1 << VIRTIO_BLK_F_FLUSH) == 0;
        let limits = Limits { capacity: self.capacity, read_only: self.read_only };
        let (memory, queue) = (io.ram.guest(), &mut io.queues[0]);
        let mut answered = self.answer_finished(memory, queue)?;
        let (mut taken, mut next) = (0, Next::Again);
        queue.hush(memory)?;
        while taken < queue.size() {
            if self.ring.as_ref().is_some_and(Ring::is_full) {
                next = Next::Wait; // for something to be finished
                break;
            }
            match queue.pop(memory)? {
                Some(chain) => {
                    let head = chain.head;
                    // What a request costs is known now, and nothing has come of it yet: the place for a rate limit.
                    let (answer, command) = request::parse(chain, limits)?;
                    taken += 1;
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
        if self.ring.as_mut().is_some_and(|ring| !ring.submit()) && next == Next::Wait {
            next = Next::At(Instant::now() + ring::RETRY);
        }
        answered += self.answer_finished(memory, queue)?;
        if answered > 0 && queue.wants_interrupt(memory)? {
            io.interrupt.queue();
        }
        Ok(next)
    }

    /// Answers a request and gives how much was written, unless it is answered later.
    fn handle(
        &mut self,
        answer: Answer<'_>,
        command: std::result::Result<Command<'_>, Status>,
        write_through: bool,
    ) -> Option<usize> {
        let command = match command {
            Ok(command) => command,
            Err(status) => return Some(answer.give(status, 0)),
        };
        let at_once = match (&mut self.ring, &command) {
            (Some(_), Command::Write { .. }) if write_through => Some((answer, command)),
            (Some(_), Command::Flush) if self.cache == Cache::Unsafe => Some((answer, command)),
            (Some(ring), _) => ring.take(answer, command),
            (None, _) => Some((answer, command)),
        };
        let (answer, command) = at_once?;
        let (act, done) = self.execute(command, write_through);
        let (status, filled) = self.conclude(act, &done);
        Some(answer.give(status, filled))
    }

    /// Answers what the ring has finished, and says how many that were.
    fn answer_finished(
        &mut self,
        memory: &GuestMemoryMmap,
        queue: &mut VirtQueue,
    ) -> std::result::Result<usize, Broken> {
        let mut answered = 0;
        while let Some(finished) = self.ring.as_mut().and_then(Ring::finished) {
            let (status, filled) = self.conclude(finished.act, &finished.done);
            let (head, written) = finished.give(status, filled);
            queue.put(memory, head, written)?;
            answered += 1;
        }
        Ok(answered)
    }

    /// Brings what the ring has under way to an end.
    fn drain(&mut self, io: &mut Io<'_>) -> std::result::Result<(), Broken> {
        let (memory, queue) = (io.ram.guest(), &mut io.queues[0]);
        let mut answered = 0;
        while let Some(ring) = self.ring.as_mut().filter(|ring| !ring.is_idle()) {
            ring.wait();
            answered += self.answer_finished(memory, queue)?;
        }
        if answered > 0 && queue.wants_interrupt(memory)? {
            io.interrupt.queue();
        }
        Ok(())
    }

    /// Does what a request asks for, now. Says what that was and how many bytes of data the driver got.
    fn execute(&mut self, command: Command<'_>, write_through: bool) -> (&'static str, io::Result<usize>) {
        match command {
            Command::Read { at, into } => {
                let len = into.len();
                ("read", self.storage.read(at, into).map(|()| len))
            }
            Command::Write { at, from } => {
                let mut done = self.storage.write(at, from);
                if write_through {
                    done = done.and_then(|()| self.flush());
                }
                ("write", done.map(|()| 0))
            }
            Command::Flush => ("flush", self.flush().map(|()| 0)),
            Command::Name { into } => ("name", Ok(request::write_name(&self.id, into))),
            Command::Discard(stretches) => (DISCARD, self.each(&stretches, <dyn Storage>::discard)),
            Command::WriteZeroes(stretches) => {
                ("write zeros to", self.each(&stretches, <dyn Storage>::write_zeroes))
            }
        }
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

    /// Nothing is under way any more, and everything is in the files. If that cannot be, a snapshot will say so.
    fn come_to_rest(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.abandon();
        }
        if let Err(error) = self.storage.settle() {
            self.note_failure("settle", &error);
        }
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

impl VirtioDevice for Block {
    fn kind(&self) -> Kind {
        Kind { id: 2, queues: &[QUEUE] }
    }

    fn features(&self) -> u64 {
        let always = 1 << VIRTIO_BLK_F_SEG_MAX | 1 << VIRTIO_BLK_F_BLK_SIZE | 1 << VIRTIO_BLK_F_FLUSH;
        match self.read_only {
            true => always | 1 << VIRTIO_BLK_F_RO,
            false => always | 1 << VIRTIO_BLK_F_DISCARD | 1 << VIRTIO_BLK_F_WRITE_ZEROES,
        }
    }

    /// `struct virtio_blk_config` (virtio 1.2, section 5.2.4).
    fn config(&self) -> Vec<u8> {
        let mut config = vec![0; CONFIG_LEN];
        config[..8].copy_from_slice(&self.capacity.to_le_bytes());
        let mut put = |at: usize, value: u32| config[at..at + 4].copy_from_slice(&value.to_le_bytes());
        put(12, SEG_MAX);
        put(20, SECTOR as u32);
        put(36, request::MAX_DISCARD_SECTORS);
        put(40, request::MAX_DISCARD_SEGMENTS);
        put(44, 1); // discards may begin at any sector, and what is in the way of the host's it answers
        put(48, request::MAX_ZERO_SECTORS);
        put(52, request::MAX_ZERO_SEGMENTS);
        config[56] = 1; // zeros may be holes
        config
    }

    fn begin(&mut self, io: &mut Io<'_>, watch: &Watch) -> std::result::Result<(), Broken> {
        self.ring.as_mut().map_or(Ok(()), |ring| ring.begin(io.ram, watch))
    }

    fn work(&mut self, cause: Cause, io: &mut Io<'_>) -> std::result::Result<Next, Broken> {
        if let (Cause::Ready(ring::FINISHED), Some(ring)) = (cause, &self.ring) {
            ring.woken();
        }
        // A device that is broken is not asked to end.
        self.serve(io).inspect_err(|_| self.come_to_rest())
    }

    fn end(&mut self, io: &mut Io<'_>) -> std::result::Result<(), Broken> {
        let drained = self.drain(io);
        self.come_to_rest();
        drained
    }

    /// Nothing that is under way may come back in the next driver's queue.
    fn reset(&mut self) {
        self.come_to_rest();
    }
}

impl Persist for Block {
    type State = BlockState;

    fn save(&self) -> Result<BlockState> {
        let Self { id: _, name, read_only, cache: _, storage, ring: _, failures: _, capacity } = self;
        if !storage.is_settled() {
            let lost = io::Error::other("what the guest wrote last is not in the file");
            return Err(Error::file("save disk", name, lost));
        }
        Ok(BlockState { capacity: *capacity, read_only: *read_only })
    }

    /// A longer file than the one that was saved keeps the old capacity until [`Block::resize`].
    fn restore(&mut self, state: &BlockState) -> Result<()> {
        let BlockState { capacity, read_only } = state;
        let refused =
            |problem: String| Err(Error::config("disks", format!("{}: {} {problem}", self.id, self.name)));
        if self.read_only != *read_only {
            let known = if *read_only { "read-only" } else { "writable" };
            return refused(format!("must be {known}, as the guest knows it"));
        }
        let sectors = self.sectors()?;
        if sectors < *capacity {
            return refused(format!("has {sectors} sectors of {SECTOR} bytes; the guest knows {capacity}"));
        }
        self.capacity = *capacity;
        Ok(())
    }
}
