//! Disks (virtio 1.2, section 5.2): one queue of requests, answered from files of the host.
//!
//! ```text
//!   chain ──request──> BlockRequest ──Block──> Storage: HostFile, a raw image or block device
//!                                    │             Overlay, a layer over what is only read: LowerFiles
//!                                    │             or UringEngine, which has many under way
//!                                    └──> status, the last byte that the chain has room for
//! ```

use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use virtio_bindings::bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX,
    VIRTIO_BLK_F_WRITE_ZEROES,
};

use super::watch::Watch;
use super::{Broken, Cause, Io, Kind, Next, VirtioDevice};
use crate::config::devices::{Cache, DiskConfig, Engine, RateLimit};
use crate::devices::virtio::limiter::RateLimiter;
use crate::error::{Error, Result};
use crate::memory::ram::GuestRam;
use crate::persist::Persist;

mod bits;
mod bounce;
pub mod cluster_map;
mod clusters;
pub mod copy;
mod digest;
#[cfg(test)]
mod direct_tests;
mod directory;
mod disk_files;
mod gate;
mod host_file;
mod image;
mod layer;
mod live_map;
mod lower_files;
mod medium;
mod pause_buffer;
mod quota;
mod raw;
mod request;
mod serve;
mod storage;
mod sync_tracker;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod uring;

use clusters::Clusters;
use copy::LayerSource;
pub use disk_files::DiskFiles;
pub use gate::{ClosedGates, Gate};
use host_file::{HostFile, OpenMode};
pub use image::Image;
use layer::Overlay;
use lower_files::LowerFiles;
use medium::Medium;
use request::SECTOR;
use uring::UringEngine;

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
    storage: Medium,
    /// Does reads, writes and flushes where there is one.
    uring: Option<UringEngine>,
    limiter: RateLimiter,
    gate: Arc<Gate>,
    /// Transfers may hold pages of guest memory.
    is_direct: bool,
    /// When to look again how long the files are: a look before each write would cost each of them a system
    /// call.
    next_len_check: Instant,
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
        let DiskConfig { id, path, read_only, cache, engine, beneath, layer, layer_size, limit } = config;
        let storage = match layer {
            None => {
                let wanted = if *read_only { OpenMode::Read } else { OpenMode::Write };
                Medium::Image(HostFile::open(id, path, wanted)?)
            }
            Some(layer) => {
                let wanted = if *read_only { OpenMode::Read } else { OpenMode::Create };
                let lower = LowerFiles::open(id, path, beneath.as_ref(), wanted)?;
                Medium::Layered(Box::new(Overlay::open(id, lower, (layer, *layer_size), wanted)?))
            }
        };
        let uring = match engine {
            Engine::Sync => None,
            Engine::IoUring => Some(UringEngine::new(id, &*storage, QUEUE)?),
        };
        let mut disk = Self {
            id: id.clone(),
            name: layer.as_ref().unwrap_or(path).to_string(),
            read_only: *read_only,
            cache: *cache,
            storage,
            uring,
            limiter: RateLimiter::new(limit),
            gate: Arc::default(),
            is_direct: false,
            next_len_check: Instant::now(),
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

    /// Changes how fast it may be used.
    pub fn limit(&mut self, limit: &RateLimit) {
        self.limiter.change(limit);
    }

    /// The gate that keeps the disk from taking requests.
    #[must_use]
    pub fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate)
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.uring.as_ref().is_none_or(UringEngine::is_idle)
    }

    /// Begins a copy of what the guest writes, where that is in a layer. Until [`Block::end_copy`] the layer notes what is written.
    ///
    /// # Errors
    /// The host has no descriptor left, or a sync of the layer failed.
    pub fn begin_copy(&mut self) -> Result<Option<LayerSource>> {
        let Some(overlay) = self.storage.overlay_mut() else { return Ok(None) };
        let source = overlay.begin_copy().map_err(copy::failed(&self.id))?;
        self.log_in_flight_writes();
        Ok(Some(source))
    }

    /// The clusters that were written since the copy began or this was called last. A write that is under way counts the next time
    /// too.
    pub fn take_written(&mut self) -> Clusters {
        let Some(overlay) = self.storage.overlay_mut() else { return Clusters::new() };
        let written = overlay.take_written();
        self.log_in_flight_writes();
        written
    }

    fn log_in_flight_writes(&mut self) {
        let Some(overlay) = self.storage.overlay_mut() else { return };
        for (place, len) in self.uring.iter().flat_map(UringEngine::in_flight_writes) {
            overlay.log_in_flight_write(place.at, len);
        }
    }

    /// Checks that a copy, which was made meanwhile, has what the guest wrote.
    ///
    /// # Errors
    /// A sync failed.
    pub fn check_copy(&self) -> Result<()> {
        self.storage.overlay().map_or(Ok(()), Overlay::check_syncs).map_err(copy::failed(&self.id))
    }

    /// Ends what [`Block::begin_copy`] began.
    pub fn end_copy(&mut self) {
        self.storage.overlay_mut().into_iter().for_each(Overlay::end_copy);
    }

    /// The image, where there is no layer over it.
    ///
    /// # Errors
    /// The host does not let it be looked at.
    pub fn image(&self) -> Result<Option<Image>> {
        self.storage.image().map(|file| Image::of(file, !self.read_only)).transpose()
    }

    /// The files that a snapshot of the disk depends on.
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub fn files(&self) -> Result<DiskFiles> {
        DiskFiles::of(&*self.storage)
    }

    /// The digest of the map of the layer that is only read: the one beneath what the guest writes, or all
    /// that there is over the base.
    #[must_use]
    pub fn digest_of_frozen_layer(&self) -> Option<u64> {
        self.storage.overlay().and_then(|overlay| overlay.digest_of_frozen_layer(self.read_only))
    }

    /// Brings everything into the disk's files for whoever opens them, in a later boot of the host too. The VM has ended.
    ///
    /// # Errors
    /// The host refuses.
    pub fn settle(&mut self) -> Result<()> {
        self.storage.settle().map_err(|source| Error::file("write the last of disk", &self.name, source))
    }

    /// Whether [`Block::rewind`] would bring back what there was at the restore.
    ///
    /// # Errors
    /// [`Error::Config`]: what the guest writes is not in a layer that was made for it then.
    pub fn check_rewind(&self) -> Result<()> {
        let kept_apart = || self.storage.overlay().is_some_and(Overlay::was_empty);
        if self.read_only || kept_apart() {
            return Ok(());
        }
        let problem = format!(
            "{}: what is written to {} cannot be taken back; a disk with a layer of its own can be rewound",
            self.id, self.name
        );
        Err(Error::config("disks", problem))
    }

    /// Takes back all that was written. The device does not work.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn rewind(&mut self) -> Result<()> {
        let failed = |source| Error::file("empty layer", &self.name, source);
        if self.read_only { Ok(()) } else { self.storage.empty().map_err(failed) }
    }

    /// Lets transfers hold pages of guest memory once freezing it moves none of them any more.
    fn allow_direct(&mut self, ram: &GuestRam) {
        if !self.is_direct && ram.with_base(|base| base.private_to >= ram.len()) {
            self.storage.files().into_iter().for_each(HostFile::allow_direct);
            self.is_direct = true;
        }
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
        self.uring.as_mut().map_or(Ok(()), |uring| uring.begin(io.ram, watch))
    }

    fn work(&mut self, _: Cause, io: &mut Io<'_>) -> std::result::Result<Next, Broken> {
        self.allow_direct(io.ram);
        // A device that is broken is not asked to end.
        self.serve(io).inspect_err(|_| self.abandon())
    }

    fn end(&mut self, io: &mut Io<'_>) -> std::result::Result<(), Broken> {
        let drained = self.drain(io);
        self.abandon();
        drained
    }

    /// Nothing that is under way may come back in the next driver's queue.
    fn reset(&mut self) {
        self.abandon();
    }
}

impl Persist for Block {
    type State = BlockState;

    fn save(&self) -> Result<BlockState> {
        let Self {
            id: _,
            name: _,
            read_only,
            cache: _,
            storage: _,
            uring: _,
            limiter: _,
            gate: _,
            is_direct: _,
            next_len_check: _,
            failures: _,
            capacity,
        } = self;
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
