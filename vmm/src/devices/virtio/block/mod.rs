//! Disks (virtio 1.2, section 5.2): one queue of requests, answered from files of the host.
//!
//! ```text
//!   chain ──request──> Command ──Block──> Storage: HostFile, a raw image or block device
//!                                    │             Overlay, a layer over one
//!                                    └──> status, the last byte that the chain has room for
//! ```

use std::fs::File;
use std::io::{self, ErrorKind};

use serde::{Deserialize, Serialize};
use virtio_bindings::bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX,
    VIRTIO_BLK_F_WRITE_ZEROES,
};

use super::{Broken, Cause, Io, Kind, Next, VirtioDevice};
use crate::config::devices::{Cache, DiskConfig};
use crate::error::{Error, Result};
use crate::persist::Persist;

mod digest;
mod file;
mod layer;
mod map;
mod request;
mod storage;
#[cfg(test)]
mod tests;

use file::{HostFile, Use};
use layer::Overlay;
use request::{Command, Limits, SECTOR, Status, Stretch};
use storage::Storage;

/// Requests at a time.
const QUEUE: u16 = 256;
/// Pieces of data that a request may have: what else its chain holds are the header and the status.
const SEG_MAX: u32 = QUEUE as u32 - 2;
/// Bytes of the configuration space, up to what secure erase would add.
const CONFIG_LEN: usize = 60;

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
        let DiskConfig { id, path, read_only, cache, engine: _, layer, limit: _ } = config;
        let storage: Box<dyn Storage> = match (layer, read_only) {
            (None, true) => Box::new(HostFile::open(id, path, Use::Read)?),
            (None, false) => Box::new(HostFile::open(id, path, Use::Write)?),
            (Some(layer), true) => Box::new(Overlay::open(id, path, layer, Use::Read, *cache)?),
            (Some(layer), false) => Box::new(Overlay::open(id, path, layer, Use::Make, *cache)?),
        };
        let mut disk = Self {
            id: id.clone(),
            name: layer.as_ref().unwrap_or(path).to_string(),
            read_only: *read_only,
            cache: *cache,
            storage,
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

    /// Answers requests for one turn, one after another.
    fn serve(&mut self, io: &mut Io<'_>) -> std::result::Result<Next, Broken> {
        // A driver that cannot flush takes what is written for safe (virtio 1.2, section 5.2.6.2).
        let write_through = io.features & (1 << VIRTIO_BLK_F_FLUSH) == 0;
        let limits = Limits { capacity: self.capacity, read_only: self.read_only };
        io.serve(0, |chain| {
            let (answer, command) = request::parse(chain, limits)?;
            let (status, filled) = match command {
                Ok(command) => self.execute(command, write_through),
                Err(status) => (status, 0),
            };
            Ok(answer.give(status, filled))
        })
    }

    /// Does what a request asks for. Says how it went and how many bytes of data the driver got.
    fn execute(&mut self, command: Command<'_>, write_through: bool) -> (Status, usize) {
        let (act, done) = match command {
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
            Command::Discard(stretches) => ("discard", self.each(&stretches, <dyn Storage>::discard)),
            Command::WriteZeroes(stretches) => {
                ("write zeros", self.each(&stretches, <dyn Storage>::write_zeroes))
            }
        };
        match done {
            Ok(filled) => (Status::Done, filled),
            Err(error) if act == "discard" && is_not_offered(&error) => (Status::Unsupported, 0),
            Err(error) => {
                self.note_failure(act, &error);
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

    /// If it cannot be, a snapshot will say so.
    fn settle(&mut self) {
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

    fn work(&mut self, _: Cause, io: &mut Io<'_>) -> std::result::Result<Next, Broken> {
        // A device that is broken is not asked to end.
        self.serve(io).inspect_err(|_| self.settle())
    }

    fn end(&mut self, _: &mut Io<'_>) -> std::result::Result<(), Broken> {
        self.settle();
        Ok(())
    }
}

impl Persist for Block {
    type State = BlockState;

    fn save(&self) -> Result<BlockState> {
        let Self { id: _, name, read_only, cache: _, storage, failures: _, capacity } = self;
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
