//! Disks (virtio 1.2, section 5.2): one queue of requests, executed on files of the host.
//!
//! ```text
//!   chain ──request──> BlockRequest ──serve──┬── at once ──────> Medium ──> Storage ──> HostFile
//!                                            └── UringEngine ──> Storage ──> kernel ──> HostFile
//!
//!   Storage: HostFile, a raw image or block device
//!            Parts, several of them one after another, which are only read
//!            Overlay, a layer over LowerFiles, which are only read
//!   status:  the last byte that the chain has room for
//! ```

use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use virtio_bindings::bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX,
    VIRTIO_BLK_F_WRITE_ZEROES,
};

use super::watch::Watch;
use super::{DeviceFailed, DeviceIo, DeviceKind, NextTurn, VirtioDevice, WakeReason};
use crate::config::devices::{Cache, DiskConfig, Engine, RateLimit};
use crate::counters::device::DeviceOperations;
use crate::devices::virtio::limiter::RateLimiter;
use crate::error::{Error, Result};
use crate::memory::ram::GuestRam;
use crate::persist::Persist;
use crate::sandbox::ThreadKind;

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
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gate;
mod host_file;
mod image;
mod image_files;
mod layer;
mod live_map;
mod lower_files;
mod medium;
mod operations;
mod parts;
#[cfg(test)]
mod parts_tests;
mod pause_buffer;
mod quota;
mod raw;
mod replace;
mod request;
pub(crate) mod rings;
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
use host_file::{Claim, HostFile};
pub use image::Image;
use layer::Overlay;
use medium::Medium;
pub use replace::Replacement;
use request::SECTOR;
use uring::UringEngine;

/// Entries of the queue, and of its io_uring.
const QUEUE: u16 = 256;
/// Pieces of data in a request. The header and the status take the other two descriptors.
const SEG_MAX: u32 = QUEUE as u32 - 2;
/// Bytes of the configuration space, up to the fields for secure erase.
const CONFIG_LEN: usize = 60;

/// A disk.
#[derive(Debug)]
pub struct Block {
    // Configuration.
    id: String,
    /// Name of the written file as the user gave it.
    name: String,
    read_only: bool,
    cache: Cache,
    // Glue.
    storage: Medium,
    /// Executes reads, writes and flushes of a disk with engine=io_uring.
    uring: Option<UringEngine>,
    limiter: RateLimiter,
    gate: Arc<Gate>,
    /// The kernel may hold pages of guest memory during transfers.
    is_direct: bool,
    /// Time of the next look at the files' lengths. A look before each write would cost a system call.
    next_len_check: Instant,
    /// Requests that failed on the host.
    failures: u64,
    /// Whether another file came in the place of the first one.
    is_replaced: bool,
    // Volatile.
    /// Capacity in sectors that the driver knows.
    capacity: u64,
}

/// State that the driver can see.
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
        Self::open_as(config, Claim::Exclusive)
    }

    /// Opens a disk whose image others may use, too. A layer, and the files beneath it, are not shared.
    ///
    /// # Errors
    /// As [`Block::open`], but for another's use of the image.
    pub fn open_shared(config: &DiskConfig) -> Result<Self> {
        Self::open_as(config, Claim::Shared)
    }

    fn open_as(config: &DiskConfig, claim: Claim) -> Result<Self> {
        let storage = Medium::open(config, claim)?;
        let DiskConfig { id, read_only, cache, engine, layer, limit, .. } = config;
        let uring = match engine {
            Engine::Sync => None,
            Engine::IoUring => Some(UringEngine::new(id, &*storage)?),
        };
        let mut disk = Self {
            id: id.clone(),
            name: layer.as_ref().map_or_else(|| config.image_name(), ToString::to_string),
            read_only: *read_only,
            cache: *cache,
            storage,
            uring,
            limiter: RateLimiter::new(limit),
            gate: Arc::default(),
            is_direct: false,
            next_len_check: Instant::now(),
            failures: 0,
            is_replaced: false,
            capacity: 0,
        };
        disk.capacity = disk.sectors()?;
        Ok(disk)
    }

    /// Updates the capacity to the file's length. Returns true if the configuration has changed, so that the
    /// driver has to be notified.
    ///
    /// # Errors
    /// The file is missing or has less than one sector.
    pub fn resize(&mut self) -> Result<bool> {
        let capacity = self.sectors()?;
        Ok(std::mem::replace(&mut self.capacity, capacity) != capacity)
    }

    /// Changes the rate limit.
    pub fn limit(&mut self, limit: &RateLimit) {
        self.limiter.change(limit);
    }

    /// Returns the gate that keeps the disk from taking requests.
    #[must_use]
    pub fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate)
    }

    /// Returns whether no request is in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.uring.as_ref().is_none_or(UringEngine::is_idle)
    }

    /// Begins a copy of the layer, if the disk has one. The layer logs its writes until [`Block::end_copy`].
    ///
    /// # Errors
    /// The host has no descriptor left, or a sync of the layer failed.
    pub fn begin_copy(&mut self) -> Result<Option<LayerSource>> {
        let Some(overlay) = self.storage.overlay_mut() else { return Ok(None) };
        let source = overlay.begin_copy().map_err(copy::failed(&self.id))?;
        self.log_in_flight_writes();
        Ok(Some(source))
    }

    /// Takes the clusters written since the copy began or since the last call. A write in flight counts
    /// again in the next call.
    pub fn take_written(&mut self) -> Clusters {
        let Some(overlay) = self.storage.overlay_mut() else { return Clusters::new() };
        let written = overlay.take_written();
        self.log_in_flight_writes();
        written
    }

    fn log_in_flight_writes(&mut self) {
        let Some(overlay) = self.storage.overlay_mut() else { return };
        for (location, len) in self.uring.iter().flat_map(UringEngine::in_flight_writes) {
            overlay.log_in_flight_write(location.at, len);
        }
    }

    /// Checks that a copy has everything that the guest wrote.
    ///
    /// # Errors
    /// A sync failed.
    pub fn check_copy(&self) -> Result<()> {
        self.storage.overlay().map_or(Ok(()), Overlay::check_syncs).map_err(copy::failed(&self.id))
    }

    /// Ends the copy that [`Block::begin_copy`] began.
    pub fn end_copy(&mut self) {
        self.storage.overlay_mut().into_iter().for_each(Overlay::end_copy);
    }

    /// Opens the files of the image once more, if no layer lies over it.
    ///
    /// # Errors
    /// The host cannot read a file's metadata.
    pub fn images(&self) -> Result<Vec<Image>> {
        self.storage.image().iter().map(|file| Image::of(file, !self.read_only)).collect()
    }

    /// Opens the files that a snapshot of the disk depends on.
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub fn files(&self) -> Result<DiskFiles> {
        DiskFiles::of(&*self.storage)
    }

    /// Returns the digest of the frozen layer's map. A writable disk freezes the layer below its own, a
    /// read-only disk its only layer.
    #[must_use]
    pub fn digest_of_frozen_layer(&self) -> Option<u64> {
        self.storage.overlay().and_then(|overlay| overlay.digest_of_frozen_layer(self.read_only))
    }

    /// Completes the disk's files for later opens, also in a later boot of the host. The VM has ended.
    ///
    /// # Errors
    /// The host refuses to write or sync.
    pub fn settle(&mut self) -> Result<()> {
        self.storage.settle().map_err(|source| Error::file("finish writing disk", &self.name, source))
    }

    /// Checks that [`Block::rewind`] can bring back the disk's content of the restore.
    ///
    /// # Errors
    /// [`Error::Config`] if the guest writes to a file that is not a layer made for that restore.
    pub fn check_rewind(&self) -> Result<()> {
        let has_own_layer = || self.storage.overlay().is_some_and(Overlay::was_empty);
        if self.is_replaced {
            let problem = format!("{}: cannot rewind: {} has replaced its file", self.id, self.name);
            return Err(Error::config("disks", problem));
        }
        if self.read_only || has_own_layer() {
            return Ok(());
        }
        let problem = format!(
            "{}: cannot rewind {}: the guest writes to it directly; give the disk a layer of its own",
            self.id, self.name
        );
        Err(Error::config("disks", problem))
    }

    /// Discards everything that the guest wrote. The device is halted.
    ///
    /// # Errors
    /// The file system refuses to truncate or write the layer.
    pub fn rewind(&mut self) -> Result<()> {
        let failed = |source| Error::file("empty layer", &self.name, source);
        if self.read_only { Ok(()) } else { self.storage.empty().map_err(failed) }
    }

    /// Lets transfers hold pages of guest memory once freezing it moves no pages any more.
    fn allow_direct(&mut self, ram: &GuestRam) {
        if !self.is_direct && ram.with_base(|base| base.private_to >= ram.len()) {
            self.storage.files().into_iter().for_each(HostFile::allow_direct);
            self.is_direct = true;
        }
    }

    /// Returns the number of whole sectors.
    fn sectors(&self) -> Result<u64> {
        let len =
            self.storage.len().map_err(|source| Error::file("read metadata of disk", &self.name, source))?;
        self.sectors_of(&self.name, len)
    }

    /// Returns the number of whole sectors of a file.
    fn sectors_of(&self, name: &str, len: u64) -> Result<u64> {
        match len / SECTOR {
            0 => {
                let problem = format!("{}: {name} has {len} bytes; a disk has at least {SECTOR}", self.id);
                Err(Error::config("disks", problem))
            }
            sectors => Ok(sectors),
        }
    }
}

impl VirtioDevice for Block {
    fn kind(&self) -> DeviceKind {
        DeviceKind { id: 2, queues: &[QUEUE] }
    }

    fn thread(&self) -> ThreadKind {
        ThreadKind::Block
    }

    fn operations(&self) -> DeviceOperations {
        operations::OPERATIONS
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
        put(44, 1); // discards may begin at any sector; the host refuses what it cannot align
        put(48, request::MAX_ZERO_SECTORS);
        put(52, request::MAX_ZERO_SEGMENTS);
        config[56] = 1; // write zeroes may punch holes
        config
    }

    fn begin(&mut self, io: &mut DeviceIo<'_>, watch: &Watch) -> std::result::Result<(), DeviceFailed> {
        self.uring.as_mut().map_or(Ok(()), |uring| uring.begin(io.ram, watch))
    }

    fn work(&mut self, _: WakeReason, io: &mut DeviceIo<'_>) -> std::result::Result<NextTurn, DeviceFailed> {
        self.allow_direct(io.ram);
        // The worker does not call `end` on a failed device.
        self.serve(io).inspect_err(|_| self.abandon())
    }

    fn end(&mut self, io: &mut DeviceIo<'_>) -> std::result::Result<(), DeviceFailed> {
        let drained = self.drain(io);
        self.abandon();
        drained
    }

    /// Ends requests in flight, so that none of them completes in the next driver's queue.
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
            is_replaced: _,
            capacity,
        } = self;
        Ok(BlockState { capacity: *capacity, read_only: *read_only })
    }

    /// A file that has grown since the save keeps the old capacity until [`Block::resize`].
    fn restore(&mut self, state: &BlockState) -> Result<()> {
        let BlockState { capacity, read_only } = state;
        let refused =
            |problem: String| Err(Error::config("disks", format!("{}: {} {problem}", self.id, self.name)));
        if self.read_only != *read_only {
            let known = if *read_only { "read-only" } else { "writable" };
            return refused(format!("must be {known}, as the guest's driver expects"));
        }
        let sectors = self.sectors()?;
        if sectors < *capacity {
            return refused(format!(
                "has {sectors} sectors of {SECTOR} bytes; the guest's driver expects {capacity}"
            ));
        }
        self.capacity = *capacity;
        Ok(())
    }
}
