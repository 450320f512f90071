//! A disk of several files: what lies below is only read and may be shared by any number of VMs, and a layer over it has what
//! this VM wrote. What is in the layer, by clusters of 64 KiB, its map says.
//!
//! ```text
//!   read     ──> the layer where it has the cluster, else what lies below
//!   write    ──> the layer, after what the write leaves of its first and last cluster was copied there from below;
//!                then the cluster's bit in the live map
//!   zeros    ──> a hole in the layer, likewise; a discard leaves parts of clusters alone that the layer does not have
//!   flush    ──> fdatasync, then the synced map, then fdatasync
//!   end      ──> a flush of what the synced map lacks: once the VM has ended, however it did
//!   copy     ──> one layer over the base, with what there is in the layer below and in this one (see [`super::copy`])
//! ```
//!
//! # What is on disk, and in which order
//!
//! These hold for a layer with a name. Nobody can open one without a name once this process has gone: it has no live map and is
//! never synced.
//!
//! 1. A cluster's bit is set in memory and in the live map after all of the cluster was written to the file.
//! 2. A bit reaches the synced map only after an fdatasync that began after the bit was set in memory.
//! 3. A flush succeeds after a second fdatasync has followed the write of the synced map. Without new bits the first one is enough.
//! 4. The first flush syncs the files below before it succeeds, and the directory of a layer that was opened
//!    by its path, or the layer with its metadata where the directory cannot be read. The map is true
//!    whether these syncs succeed or fail: an end writes it first, and so does a flush by io_uring when one of
//!    them fails.
//! 5. After a sync that failed no flush succeeds any more, not even one that was under way, and the synced
//!    map stays as it is. The live map is revoked, so whoever opens the layer later finds it as after a power
//!    cut.
//! 6. A flush begins once the one before has ended, and a sync succeeds only if those that overlap it do (see
//!    [`super::sync_tracker`]).
//! 7. Bits are never cleared in place. A rewind truncates the file to nothing and begins a layer with another
//!    id.
//! 8. The live map counts in the boot in which it was written, so its order on disk does not matter. What it
//!    has beyond the synced map is written to that by the next flush or end, or before another layer is
//!    written over this one, in the order of 2.
//!
//! So after a power cut each cluster is as it was at some time after the last flush that succeeded, or is the one below if it was
//! not in the layer then; after a kill of the process nothing is lost at all.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::{io, iter};

use super::cluster_map::{CLUSTER, ClusterMap, DirtyBlocks};
use super::clusters::Clusters;
use super::copy::{LayerSource, WriteLog};
use super::directory::LayerDirectory;
use super::host_file::{HostFile, OpenMode};
use super::lower_files::{LowerFiles, open_layer};
use super::quota::LayerQuota;
use super::request::{DiskRange, SECTOR};
use super::storage::{FileOffset, PendingFlush, Storage};
use crate::config::FileRef;
use crate::devices::virtio::chain::Buffers;
use crate::error::{Error, Result};
use crate::memory::files::sparse;

/// A layer, and what it lies over.
#[derive(Debug)]
pub struct Overlay {
    lower: LowerFiles,
    layer: HostFile,
    map: ClusterMap,
    /// The most that it may take of the host's disk.
    bound: Option<LayerQuota>,
    /// Whether its file system punches holes, where a guest has discarded something and there is no bound.
    has_holes: Option<bool>,
    /// Someone can open the layer once this process has gone.
    has_name: bool,
    /// Where the layer lies: to be synced by the first flush. The process that made it may have been killed
    /// before it had synced that.
    directory: Option<LayerDirectory>,
    /// The files below were synced since they were opened.
    is_lower_synced: bool,
    /// Blocks of the map that were taken for a flush, and that are not written yet.
    blocks: VecDeque<DirtyBlocks>,
    /// Clusters that the layer has once the writes under way to them have ended.
    pending: BTreeSet<u64>,
    /// It was made when it was opened, and the guest's writes are all there is in it.
    was_empty: bool,
    /// What is written while a copy is made.
    write_log: WriteLog,
    /// For a part of a cluster on its way up. Empty before the first: to touch it costs a restore as much as all else here.
    scratch: Vec<u8>,
}

impl Overlay {
    /// Opens a layer; an empty or missing file becomes an empty layer unless it is only read.
    ///
    /// # Errors
    /// Those of [`HostFile::open`]; the layer is none, or lies over something else.
    pub fn open(
        id: &str,
        lower: LowerFiles,
        (layer, size): (&FileRef, Option<u64>),
        wanted: OpenMode,
    ) -> Result<Self> {
        let place = layer;
        let layer = open_layer(id, layer, wanted)?;
        let name = layer.name().to_owned();
        let name = &name;
        let failed = |act| move |source| Error::file(act, name, source);
        let found = layer.file().metadata().map_err(failed("look at layer"))?;
        let has_name = found.nlink() > 0;
        let mut was_empty = wanted == OpenMode::Create && found.len() == 0;
        if wanted == OpenMode::Create
            && !was_empty
            && ClusterMap::is_unfinished(layer.file(), lower.identity()).map_err(failed("read layer"))?
        {
            layer.file().set_len(0).map_err(failed("empty layer"))?;
            was_empty = true;
        }
        let map = if was_empty {
            ClusterMap::make(layer.file(), lower.identity(), has_name).map_err(failed("make layer"))?
        } else {
            let mut map = lower.map_of(id, &layer)?;
            match wanted {
                OpenMode::Read => map.begin_reading(),
                OpenMode::Write | OpenMode::Create => {
                    map.begin_writing(layer.file(), has_name).map_err(failed("write layer"))?;
                }
            }
            map
        };
        if wanted != OpenMode::Read
            && let Some(live_map) = map.revocation(layer.file(), name).map_err(failed("write layer"))?
        {
            layer.syncs().revoke_on_failure(live_map);
        }
        let directory = match place {
            FileRef::Path(path) if wanted != OpenMode::Read => {
                Some(LayerDirectory::of(path).map_err(failed("open the directory of layer"))?)
            }
            _ => None,
        };
        let bound = match size {
            Some(size) if wanted != OpenMode::Read => {
                Some(LayerQuota::new(layer.file(), &map, size).map_err(failed("look at layer"))?)
            }
            _ => None,
        };
        Ok(Self {
            lower,
            layer,
            map,
            bound,
            has_holes: None,
            has_name,
            directory,
            is_lower_synced: false,
            blocks: VecDeque::new(),
            pending: BTreeSet::new(),
            was_empty,
            write_log: WriteLog::default(),
            scratch: Vec::new(),
        })
    }

    /// Whether there was nothing in the layer when it was opened.
    pub fn was_empty(&self) -> bool {
        self.was_empty
    }

    /// The digest of the map of the layer beneath, or of this one if that `is_read_only`.
    pub fn digest_of_frozen_layer(&self, is_read_only: bool) -> Option<u64> {
        let identity = match is_read_only {
            true => Some(self.map.identity()),
            false => self.lower.layer().map(|_| self.lower.identity()),
        };
        identity.map(|identity| identity.digest)
    }

    /// How many of `len` bytes from `at` on lie in the same file, and whether that is the layer.
    fn same_file_len(&self, at: u64, len: u64) -> (u64, bool) {
        let first = at / CLUSTER;
        let there = self.map.has(first);
        let mut end = (first + 1) * CLUSTER;
        while end < at + len
            && self.map.has(end / CLUSTER) == there
            && (there || self.lower.is_in_same_file(first, end / CLUSTER))
        {
            end += CLUSTER;
        }
        (len.min(end - at), there)
    }

    /// Notes from now on which clusters are written, and returns what a copy is made from.
    ///
    /// # Errors
    /// The host has no descriptor left, or a sync failed.
    pub fn begin_copy(&mut self) -> io::Result<LayerSource> {
        self.check_syncs()?;
        let (below, mut map) = match self.lower.layer() {
            Some((below, map)) => (Some(below.file().try_clone()?), map.clone()),
            None => (None, self.map.clone()),
        };
        let layer = self.layer.file().try_clone()?;
        let clusters: Clusters = match below {
            Some(_) => self.map.present(0..self.lower.len().div_ceil(CLUSTER)).collect(),
            None => Clusters::new(), // copied as a whole
        };
        clusters.iter().for_each(|range| map.include(range.clone()));
        self.write_log.begin();
        Ok(LayerSource { below, layer, clusters, map })
    }

    /// Whether no sync failed: what one was for may be lost, and a read may find it as it was before.
    ///
    /// # Errors
    /// One did.
    pub fn check_syncs(&self) -> io::Result<()> {
        self.files().into_iter().try_for_each(|file| file.syncs().check())
    }

    /// The clusters that the layer has and that were written since the last call.
    pub fn take_written(&mut self) -> Clusters {
        let written = self.write_log.take();
        // A cluster that was not written in full, or is under way, is still that below. It is noted again
        // later.
        written.iter().flat_map(|range| self.map.present(range.clone())).collect()
    }

    /// Ends what [`Overlay::begin_copy`] began.
    pub fn end_copy(&mut self) {
        self.write_log.end();
    }

    /// A write that is under way in the layer's file.
    pub fn log_in_flight_write(&mut self, at: u64, len: u64) {
        self.write_log.add(at - self.map.data(), len);
    }

    /// Brings the map to the disk after the data.
    fn write_map(&mut self) -> io::Result<()> {
        self.take_blocks();
        self.sync()?;
        if self.write_blocks()? { self.sync() } else { Ok(()) }
    }

    /// Takes what the synced map lacks, for a flush whose sync begins after this.
    fn take_blocks(&mut self) {
        let dirty = self.map.take_dirty();
        if !dirty.is_empty() {
            self.blocks.push_back(dirty);
        }
    }

    /// Writes to the synced map what was taken, after the data was synced. In the order in which it was
    /// taken: a flush that was abandoned may have left a block as it was before. Returns whether there was
    /// any.
    fn write_blocks(&mut self) -> io::Result<bool> {
        let any = !self.blocks.is_empty();
        while let Some(blocks) = self.blocks.front() {
            blocks.write(self.layer.file())?;
            self.blocks.pop_front();
        }
        Ok(any)
    }

    /// Syncs once what flushes need beside the layer itself.
    fn sync_surroundings(&mut self) -> io::Result<()> {
        if !self.is_lower_synced {
            self.lower.sync()?;
            self.is_lower_synced = true;
        }
        if let Some(directory) = &self.directory {
            directory.sync(&self.layer)?;
            self.directory = None;
        }
        Ok(())
    }

    /// After an error the kernel takes the pages that it could not write for written: the next sync would succeed.
    fn sync(&mut self) -> io::Result<()> {
        if !self.has_name {
            return Ok(());
        }
        self.layer.sync(File::sync_data)
    }

    /// Lets `put` write a stretch to the layer, with the clusters it lies in.
    fn write_clusters(
        &mut self,
        at: u64,
        len: u64,
        put: impl FnOnce(&HostFile, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let (first, last) = (at / CLUSTER, (at + len - 1) / CLUSTER);
        self.copy_up_around(at, len)?;
        // A write that fails may have been done in part.
        self.write_log.add(at, len);
        put(&self.layer, self.map.data() + at)?;
        // Only now: a cluster that could not be written in full is still that below.
        self.map.add(self.layer.file(), first..=last)
    }

    /// Counts the clusters of a write in the layer's size.
    fn reserve_quota(&mut self, at: u64, len: u64) -> io::Result<()> {
        match &mut self.bound {
            Some(bound) if len > 0 => bound.take(at / CLUSTER..(at + len).div_ceil(CLUSTER)),
            _ => Ok(()),
        }
    }

    /// Whether the file system punches holes.
    fn has_holes(&mut self) -> io::Result<bool> {
        let known = self.bound.as_ref().map(LayerQuota::has_holes).or(self.has_holes);
        let found = known.map_or_else(|| sparse::punches(self.layer.file()), Ok)?;
        self.has_holes = Some(found);
        Ok(found)
    }

    /// The end of the last whole sector. No guest sees a part of a sector behind it.
    fn end(&self) -> u64 {
        self.lower.len() / SECTOR * SECTOR
    }

    /// The clusters that lie in a stretch as a whole, or as far as the disk goes.
    fn whole_clusters(&self, at: u64, len: u64) -> Range<u64> {
        let end = at + len;
        let end = if end == self.end() { end.div_ceil(CLUSTER) } else { end / CLUSTER };
        at.div_ceil(CLUSTER)..end
    }

    /// Whether a change of a part of this cluster copies the rest of it from below.
    fn is_copied_up(&self, cluster: u64, whole: &Range<u64>) -> bool {
        !whole.contains(&cluster) && !self.map.has(cluster)
    }

    /// The layer's number among the files.
    fn layer_number(&self) -> usize {
        self.lower.files().count()
    }

    /// Copies what a write leaves of its first and last cluster, where the layer does not have them yet.
    fn copy_up_around(&mut self, at: u64, len: u64) -> io::Result<()> {
        let end = at + len;
        let (first, last) = (at / CLUSTER, (end - 1) / CLUSTER);
        if !self.map.has(first) {
            self.copy_up(first * CLUSTER, at)?;
        }
        if !self.map.has(last) {
            self.copy_up(end, self.end().min((last + 1) * CLUSTER))?;
        }
        Ok(())
    }

    /// Copies a part of a cluster from below.
    fn copy_up(&mut self, from: u64, to: u64) -> io::Result<()> {
        self.scratch.resize(CLUSTER as usize, 0);
        let bytes = &mut self.scratch[..to.saturating_sub(from) as usize];
        self.lower.read_exact(from, bytes)?;
        self.layer.file().write_all_at(bytes, self.map.data() + from)
    }
}

impl Storage for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lower.len())
    }

    fn read(&mut self, mut at: u64, mut into: Buffers<'_>) -> io::Result<()> {
        while !into.is_empty() {
            let (len, in_layer) = self.same_file_len(at, into.len() as u64);
            let part = into.take(len as usize);
            match in_layer {
                true => self.layer.read(self.map.data() + at, &part)?,
                false => self.lower.read(at, &part)?,
            }
            at += len;
        }
        Ok(())
    }

    fn write(&mut self, at: u64, from: Buffers<'_>) -> io::Result<()> {
        self.reserve_quota(at, from.len() as u64)?;
        self.write_clusters(at, from.len() as u64, |layer, at| layer.write(at, &from))
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.has_name {
            return Ok(());
        }
        // The map first: it promises nothing of the surroundings, which may not be there to be synced.
        self.write_map()?;
        self.sync_surroundings()
    }

    /// Zeros are holes: a layer promises no place to anyone. There may be something from before a crash even where the map says
    /// there is nothing.
    fn write_zeroes(&mut self, DiskRange { at, len, unmap: _ }: DiskRange) -> io::Result<()> {
        let whole = self.whole_clusters(at, len);
        if let Some(mut bound) = self.bound.take() {
            let has_holes = bound.has_holes();
            let takes_room = |cluster: &u64| !has_holes || self.is_copied_up(*cluster, &whole);
            let clusters = (at / CLUSTER..(at + len).div_ceil(CLUSTER)).filter(takes_room);
            let room = bound.take(clusters);
            self.bound = Some(bound);
            room?;
        }
        self.write_clusters(at, len, |layer, at| layer.write_zeroes(DiskRange { at, len, unmap: true }))?;
        let bound = self.bound.iter_mut().filter(|bound| bound.has_holes());
        bound.for_each(|bound| bound.give_back(whole.clone()));
        Ok(())
    }

    /// Takes no place: parts of clusters that the layer does not have keep their bytes. Does nothing on a file
    /// system without holes, where it would write as many zeros as a guest asks for.
    fn discard(&mut self, DiskRange { at, len, unmap }: DiskRange) -> io::Result<()> {
        if len == 0 || !self.has_holes()? {
            return Ok(());
        }
        let (whole, end) = (self.whole_clusters(at, len), at + len);
        let (first, last) = (at / CLUSTER, (end - 1) / CLUSTER);
        let at = if self.is_copied_up(first, &whole) { (first + 1) * CLUSTER } else { at };
        let end = if self.is_copied_up(last, &whole) { last * CLUSTER } else { end };
        match end.checked_sub(at) {
            Some(len) if len > 0 => self.write_zeroes(DiskRange { at, len, unmap }),
            _ => Ok(()),
        }
    }

    fn forget_len(&self) {
        self.layer.forget_len();
    }

    fn settle(&mut self) -> io::Result<()> {
        if self.map.is_dirty() || !self.blocks.is_empty() { self.flush() } else { Ok(()) }
    }

    fn empty(&mut self) -> io::Result<()> {
        // Should it fail midway, the bits of the old map must never get behind the new header: they would
        // stand for zeros.
        self.layer.syncs().refuse();
        let _ = self.map.take_dirty();
        self.blocks.clear();
        self.layer.file().set_len(0)?;
        self.map = ClusterMap::make(self.layer.file(), self.lower.identity(), self.has_name)?;
        self.bound.iter_mut().for_each(LayerQuota::clear);
        self.layer.syncs().forget_failures();
        Ok(())
    }

    fn files(&self) -> Vec<&HostFile> {
        self.lower.files().chain([&self.layer]).collect()
    }

    /// Layers are copied into a snapshot. A sync of this one tells whether the host lost some of it before.
    fn files_to_sync(&self) -> Vec<&HostFile> {
        iter::once(self.lower.base()).chain(self.has_name.then_some(&self.layer)).collect()
    }

    fn locate(&self, at: u64, len: u64) -> Option<FileOffset> {
        match self.same_file_len(at, len) {
            (run, _) if run < len => None,
            (_, false) => Some(self.lower.locate(at)),
            (_, true) => Some(FileOffset { file: self.layer_number(), at: self.map.data() + at }),
        }
    }

    fn log_write(&mut self, at: u64, len: u64) {
        self.write_log.add(at, len);
    }

    /// The layer has new clusters when the write has ended. Until then reads find what lies below.
    fn begin_write(&mut self, at: u64, len: u64) -> io::Result<Option<FileOffset>> {
        let end = self.map.data() + at + len;
        if len == 0 || self.layer.check_len(end).is_err() {
            return Ok(None);
        }
        let (first, last) = (at / CLUSTER, (at + len - 1) / CLUSTER);
        self.reserve_quota(at, len)?;
        self.copy_up_around(at, len)?;
        self.pending.extend((first..=last).filter(|cluster| !self.map.has(*cluster)));
        Ok(Some(FileOffset { file: self.layer_number(), at: self.map.data() + at }))
    }

    fn end_write(&mut self, at: u64, len: u64, done: io::Result<()>) -> io::Result<()> {
        let (first, last) = (at / CLUSTER, (at + len - 1) / CLUSTER);
        match (first..=last).filter(|cluster| self.pending.remove(cluster)).count() {
            0 => done,
            _ => done.and_then(|()| self.map.add(self.layer.file(), first..=last)),
        }
    }

    fn is_pending(&self, at: u64, len: u64) -> bool {
        len > 0 && self.pending.range(at / CLUSTER..=(at + len - 1) / CLUSTER).next().is_some()
    }

    fn abandon(&mut self) {
        self.pending.clear();
    }

    fn begin_flush(&mut self) -> io::Result<Option<PendingFlush>> {
        if !self.has_name {
            return Ok(None);
        }
        self.sync_surroundings()?;
        let sync = self.layer.begin_sync()?;
        self.take_blocks();
        Ok(Some(PendingFlush { file: self.layer_number(), sync, is_map_written: false }))
    }

    fn sync_done(&mut self, flush: &mut PendingFlush, done: io::Result<()>) -> io::Result<bool> {
        flush.sync.end(done)?;
        if flush.is_map_written || !self.write_blocks()? {
            return Ok(false);
        }
        flush.is_map_written = true;
        flush.sync = self.layer.begin_sync()?;
        Ok(true)
    }
}

#[cfg(test)]
#[path = "layer_tests.rs"]
mod tests;
