//! A disk of several files: lower files and a layer with the writes of this VM. Lower files are only read,
//! and any number of VMs may share them. The layer's map says which clusters of 64 KiB the layer has.
//!
//! ```text
//!   read     ──> the layer if it has the cluster, else the lower files
//!   write    ──> the rest of the first and last cluster is copied up from the lower files; then the data is
//!                written to the layer; then the clusters' bits are set in the live map
//!   zeros    ──> a hole in the layer, in the same steps; a discard leaves parts of clusters alone that the
//!                layer does not have
//!   flush    ──> fdatasync, then the synced map, then fdatasync
//!   end      ──> once the VM has ended, in whatever way: a flush of what the synced map lacks
//!   copy     ──> one layer over the base, with the content of both layers (see [`super::copy`])
//! ```
//!
//! # Contents of the disk and their order
//!
//! These rules hold for a layer with a name. A layer without a name cannot be opened once this process has
//! gone, so it has no live map and is never synced.
//!
//! 1. A cluster's bit is set in memory and in the live map after all of the cluster was written to the file.
//! 2. A bit reaches the synced map only after an fdatasync that began after the bit was set in memory.
//! 3. A flush succeeds after a second fdatasync has followed the write of the synced map. Without new bits
//!    the first one is enough.
//! 4. The first flush syncs the lower files before it succeeds, and the directory of a layer that was opened
//!    by its path. If the directory cannot be read, the flush syncs the layer with its metadata instead. The
//!    map is true whether these syncs succeed or fail: an end writes it first, and so does a flush by
//!    io_uring if one of them fails.
//! 5. After a failed sync no flush succeeds any more, not even one in progress, and the synced map stays as
//!    it is. The live map is revoked, so a later open finds the layer as after a power cut.
//! 6. A flush begins once the previous one has ended, and a sync succeeds only if the overlapping syncs do
//!    (see [`super::sync_tracker`]).
//! 7. Bits are never cleared in place. A rewind truncates the file to nothing and begins a layer with
//!    another id.
//! 8. The live map counts in the boot in which it was written, so its order on disk does not matter. The next
//!    flush or end writes its bits beyond the synced map there, in the order of rule 2. They are also written
//!    before another layer is written over this one.
//!
//! After a power cut each cluster is therefore as it was at some time after the last successful flush. If the
//! layer did not have it then, it is the lower one. After a kill of the process nothing is lost.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};

use super::cluster_map::{CLUSTER, ClusterMap, DirtyBlocks};
use super::clusters::Clusters;
use super::copy::{LayerSource, WriteLog};
use super::directory::LayerDirectory;
use super::host_file::{HostFile, OpenMode};
use super::lower_files::{LowerFiles, open_layer};
use super::quota::LayerQuota;
use super::request::SECTOR;
use super::storage::Storage;
use crate::config::FileRef;
use crate::error::{Error, Result};
use crate::memory::files::sparse;

mod storage;

/// A layer over lower files.
#[derive(Debug)]
pub struct Overlay {
    lower: LowerFiles,
    layer: HostFile,
    map: ClusterMap,
    /// The limit of the layer's space on the host.
    quota: Option<LayerQuota>,
    /// Returns whether the file system punches holes.
    has_holes: Option<bool>,
    /// Another process can open the layer later.
    has_name: bool,
    /// The layer's directory until the first flush syncs it. The process that made the layer may have been
    /// killed before it synced the directory.
    directory: Option<LayerDirectory>,
    /// The lower files were synced since they were opened.
    is_lower_synced: bool,
    /// Blocks of the map that were taken for a flush and are not written yet.
    blocks_to_write: VecDeque<DirtyBlocks>,
    /// Clusters that the layer gets when the writes in flight have ended.
    pending_clusters: BTreeSet<u64>,
    /// The layer was empty when it was opened, so it has nothing but the guest's writes.
    was_empty: bool,
    /// Clusters written while a copy is made.
    write_log: WriteLog,
    /// Buffer to copy a part of a cluster up. Empty before the first use: touching it costs as much of a
    /// restore as all else here.
    scratch: Vec<u8>,
}

impl Overlay {
    /// Opens a layer. An empty or missing file becomes an empty layer unless it is only read.
    ///
    /// # Errors
    /// Those of [`HostFile::open`]; the file is not a layer, or belongs to other lower files.
    pub fn open(
        id: &str,
        lower: LowerFiles,
        (layer, size): (&FileRef, Option<u64>),
        wanted: OpenMode,
    ) -> Result<Self> {
        let file_ref = layer;
        let layer = open_layer(id, layer, wanted)?;
        let name = layer.name().to_owned();
        let name = &name;
        let failed = |act| move |source| Error::file(act, name, source);
        let found = layer.file().metadata().map_err(failed("read metadata of layer"))?;
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
        let directory = match file_ref {
            FileRef::Path(path) if wanted != OpenMode::Read => {
                Some(LayerDirectory::of(path).map_err(failed("open the directory of layer"))?)
            }
            _ => None,
        };
        let quota = match size {
            Some(size) if wanted != OpenMode::Read => {
                Some(LayerQuota::new(layer.file(), &map, size).map_err(failed("read metadata of layer"))?)
            }
            _ => None,
        };
        Ok(Self {
            lower,
            layer,
            map,
            quota,
            has_holes: None,
            has_name,
            directory,
            is_lower_synced: false,
            blocks_to_write: VecDeque::new(),
            pending_clusters: BTreeSet::new(),
            was_empty,
            write_log: WriteLog::default(),
            scratch: Vec::new(),
        })
    }

    /// Returns whether the layer was empty when it was opened.
    pub fn was_empty(&self) -> bool {
        self.was_empty
    }

    /// Returns the digest of the lower layer's map, or of this layer's map if it `is_read_only`.
    pub fn digest_of_frozen_layer(&self, is_read_only: bool) -> Option<u64> {
        let identity = match is_read_only {
            true => Some(self.map.identity()),
            false => self.lower.layer().map(|_| self.lower.identity()),
        };
        identity.map(|identity| identity.digest)
    }

    /// Returns how many of `len` bytes from `at` on lie in one file, and whether that file is the layer.
    fn same_file_len(&self, at: u64, len: u64) -> (u64, bool) {
        let first = at / CLUSTER;
        let in_layer = self.map.has(first);
        let mut end = (first + 1) * CLUSTER;
        while end < at + len
            && self.map.has(end / CLUSTER) == in_layer
            && (in_layer || self.lower.is_in_same_file(first, end / CLUSTER))
        {
            end += CLUSTER;
        }
        (len.min(end - at), in_layer)
    }

    /// Starts to log writes, and returns the source of a copy.
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
            None => Clusters::new(), // the layer is copied as a whole
        };
        clusters.iter().for_each(|range| map.include(range.clone()));
        self.write_log.start();
        Ok(LayerSource { below, layer, clusters, map })
    }

    /// Checks that no sync failed: its data may be lost, and a read may find the content before it.
    ///
    /// # Errors
    /// A sync failed.
    pub fn check_syncs(&self) -> io::Result<()> {
        self.files().into_iter().try_for_each(|file| file.syncs().check())
    }

    /// Takes the clusters that the layer has and that were written since the last call.
    pub fn take_written(&mut self) -> Clusters {
        let written = self.write_log.take();
        // A cluster that was not written in full, or is still in flight, is the lower one. It is logged
        // again later.
        written.iter().flat_map(|range| self.map.present(range.clone())).collect()
    }

    /// Stops the log that [`Overlay::begin_copy`] started.
    pub fn end_copy(&mut self) {
        self.write_log.stop();
    }

    /// Logs a write in flight, by its offset in the layer's file.
    pub fn log_in_flight_write(&mut self, at: u64, len: u64) {
        self.write_log.add(at - self.map.data(), len);
    }

    /// Writes the map to disk after the data.
    fn write_map(&mut self) -> io::Result<()> {
        self.take_blocks();
        self.sync()?;
        if self.write_blocks()? { self.sync() } else { Ok(()) }
    }

    /// Takes the blocks that the synced map lacks, for a flush whose sync begins after this call.
    fn take_blocks(&mut self) {
        let dirty = self.map.take_dirty();
        if !dirty.is_empty() {
            self.blocks_to_write.push_back(dirty);
        }
    }

    /// Writes the taken blocks to the synced map, after the data was synced. Writes them in the order in
    /// which they were taken, because an abandoned flush may have left an older version of a block. Returns
    /// whether there were any.
    fn write_blocks(&mut self) -> io::Result<bool> {
        let any = !self.blocks_to_write.is_empty();
        while let Some(blocks) = self.blocks_to_write.front() {
            blocks.write(self.layer.file())?;
            self.blocks_to_write.pop_front();
        }
        Ok(any)
    }

    /// Syncs once the files that flushes need beside the layer itself.
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

    /// Syncs the layer. After an error the kernel counts the pages that it could not write as written, so
    /// the next sync would succeed.
    fn sync(&mut self) -> io::Result<()> {
        if !self.has_name {
            return Ok(());
        }
        self.layer.sync(File::sync_data)
    }

    /// Writes a range to the layer with `write`, and adds its clusters to the map.
    fn write_clusters(
        &mut self,
        at: u64,
        len: u64,
        write: impl FnOnce(&HostFile, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let (first, last) = (at / CLUSTER, (at + len - 1) / CLUSTER);
        self.copy_up_around(at, len)?;
        // A failed write may have been executed in part.
        self.write_log.add(at, len);
        write(&self.layer, self.map.data() + at)?;
        // Only now: a cluster that was not written in full is still the lower one.
        self.map.add(self.layer.file(), first..=last)
    }

    /// Counts the clusters of a write against the layer's size.
    fn reserve_quota(&mut self, at: u64, len: u64) -> io::Result<()> {
        match &mut self.quota {
            Some(quota) if len > 0 => quota.take(at / CLUSTER..(at + len).div_ceil(CLUSTER)),
            _ => Ok(()),
        }
    }

    /// Returns whether the file system punches holes.
    fn has_holes(&mut self) -> io::Result<bool> {
        let known = self.quota.as_ref().map(LayerQuota::has_holes).or(self.has_holes);
        let found = known.map_or_else(|| sparse::punches(self.layer.file()), Ok)?;
        self.has_holes = Some(found);
        Ok(found)
    }

    /// Returns the end of the last whole sector. Guests do not see a partial sector behind it.
    fn end(&self) -> u64 {
        self.lower.len() / SECTOR * SECTOR
    }

    /// Returns the clusters that lie in a range as a whole, or up to the end of the disk.
    fn whole_clusters(&self, at: u64, len: u64) -> Range<u64> {
        let end = at + len;
        let end = if end == self.end() { end.div_ceil(CLUSTER) } else { end / CLUSTER };
        at.div_ceil(CLUSTER)..end
    }

    /// Returns whether a change of a part of this cluster copies the rest of it up.
    fn is_copied_up(&self, cluster: u64, whole: &Range<u64>) -> bool {
        !whole.contains(&cluster) && !self.map.has(cluster)
    }

    /// Returns the layer's number among the files.
    fn layer_number(&self) -> usize {
        self.lower.files().count()
    }

    /// Copies up the rest of a write's first and last cluster, if the layer does not have them yet.
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

    /// Copies a part of a cluster up from the lower files.
    fn copy_up(&mut self, from: u64, to: u64) -> io::Result<()> {
        self.scratch.resize(CLUSTER as usize, 0);
        let bytes = &mut self.scratch[..to.saturating_sub(from) as usize];
        self.lower.read_exact(from, bytes)?;
        self.layer.file().write_all_at(bytes, self.map.data() + from)
    }
}

#[cfg(test)]
#[path = "layer_tests.rs"]
mod tests;
