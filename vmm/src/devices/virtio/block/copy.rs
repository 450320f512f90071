//! A copy of a layer, made while the device writes to the layer.
//!
//! ```text
//!   begin     the layer logs from now on which clusters are written
//!   bulk      the lower layer, and the clusters of this one ──> the copy              the device works
//!   pass      clusters written since ──> the copy if they are many, else memory        the device works
//!   last      clusters written since the last pass ──> memory                          the device is halted
//!   finish    memory ──> the copy; its map                                             the device works
//! ```
//!
//! The file system may delay a write to the copy until the disk has taken older writes, so the pause writes
//! to memory. Memory is limited to [`MAX_BUFFERED`]. Passes while the device works leave half of it to the
//! pause, and a cluster that does not fit goes to the copy.
//!
//! The lower layer never changes: it is copied once, and shares its blocks with the copy if the file system
//! can. Each copy has everything that the disk has over its base, in one layer.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;

use super::cluster_map::{CLUSTER, ClusterMap};
use super::clusters::{Clusters, count};
use super::pause_buffer::{PauseBuffer, overlap};
use crate::error::{Error, Result};
use crate::memory::files::memfd::fresh;
use crate::memory::files::sparse;
use crate::run_control::RunState;

/// Clusters copied between two looks at the clock, unless they are a hole.
const STEP: u64 = (1 << 20) / CLUSTER;
/// Clusters of the upper layer that the bulk copies at once.
const BULK_STEP: u64 = 4 * STEP;
/// Clusters of one disk that a copy buffers in memory at most: 128 MiB.
pub const MAX_BUFFERED: u64 = (128 << 20) / CLUSTER;

/// The clusters that one disk wrote, logged while a copy is made.
#[derive(Debug, Default)]
pub struct WriteLog(Option<Clusters>);

impl WriteLog {
    pub(super) fn start(&mut self) {
        self.0 = Some(Clusters::new());
    }

    pub(super) fn stop(&mut self) {
        self.0 = None;
    }

    /// Logs that these bytes of the disk were written, perhaps in part.
    pub(super) fn add(&mut self, at: u64, len: u64) {
        if let Some(clusters) = &mut self.0
            && len > 0
        {
            clusters.insert(at / CLUSTER..(at + len).div_ceil(CLUSTER));
        }
    }

    /// Takes the clusters that were written since the last call.
    pub(super) fn take(&mut self) -> Clusters {
        self.0.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

/// The files that a copy is made from.
#[derive(Debug)]
pub struct LayerSource {
    pub(super) below: Option<File>,
    pub(super) layer: File,
    /// The clusters of the layer, if there is one below it.
    pub(super) clusters: Clusters,
    /// All clusters that the disk has in either layer.
    pub(super) map: ClusterMap,
}

/// A copy in progress.
#[derive(Debug)]
pub struct LayerCopy {
    from: LayerSource,
    to: File,
    /// The file that is copied as a whole shares its blocks with the copy.
    shares: bool,
    /// Bytes of the host's disk that the copy takes at most, without clusters written later.
    bytes: u64,
    /// Clusters that were copied after the bulk and are not in the file yet.
    pub(super) pause_buffer: PauseBuffer,
    /// Clusters that remain to be copied.
    remaining: Clusters,
    /// Clusters that were copied after the bulk.
    recopied: Clusters,
    /// Clusters with space in the file, or with reserved space.
    allocated: Clusters,
    /// Clusters with reserved space only.
    reserved: Clusters,
    /// Bytes copied from the layers so far.
    copied: u64,
}

impl LayerCopy {
    /// Begins a copy in an empty file.
    ///
    /// # Errors
    /// The host has no memory for it.
    pub fn begin(from: LayerSource, to: File) -> Result<Self> {
        let pause_buffer = PauseBuffer::new(fresh(from.map.end())?);
        let shares = sparse::share(from.whole(), &to);
        let bytes = from.bytes_in(&to, shares);
        Ok(Self {
            from,
            to,
            shares,
            bytes,
            pause_buffer,
            remaining: Clusters::new(),
            recopied: Clusters::new(),
            allocated: Clusters::new(),
            reserved: Clusters::new(),
            copied: 0,
        })
    }

    /// Returns the bytes of the host's disk that the copy takes at most, without clusters written later. The
    /// number is fixed when the copy begins: a layer that has grown since must not count as more than was
    /// reserved.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies the bulk. `goes_on` gets the number of bytes of each step. Stops if it returns false, and
    /// returns whether everything was copied.
    ///
    /// # Errors
    /// The host refuses to read a layer or to write the copy.
    pub fn copy_bulk(&mut self, goes_on: &dyn Fn(u64) -> bool) -> io::Result<bool> {
        let stopped = Cell::new(false);
        let goes_on = |bytes| {
            stopped.set(stopped.get() || !goes_on(bytes));
            !stopped.get()
        };
        if !self.shares {
            self.copied += sparse::whole_while(self.from.whole(), &self.to, goes_on)?;
        }
        if self.from.below.is_some() && !stopped.get() {
            for step in self.from.clusters.iter().flat_map(steps) {
                let copied = sparse::stretch(&self.from.layer, &self.to, self.from.file_range(&step))?;
                self.copied += copied;
                if !goes_on(copied) {
                    break;
                }
            }
        }
        if stopped.get() {
            return Ok(false);
        }
        // The copy of a file with a hole at its end lacks that hole.
        if self.to.metadata()?.len() < self.from.map.end() {
            self.to.set_len(self.from.map.end())?;
        }
        if !self.shares {
            let all = self.from.map.data()..self.from.map.end();
            self.allocated = self.from.with_data(&self.to, all)?;
        } else if !self.from.shares_layer(&self.to, self.shares) {
            for range in self.from.clusters.iter() {
                self.allocated.extend(self.from.with_data(&self.to, self.from.file_range(range))?);
            }
        }
        Ok(true)
    }

    /// Adds clusters that remain to be copied.
    pub fn add(&mut self, clusters: Clusters) {
        self.remaining.extend(clusters);
    }

    /// Returns the bytes copied from the layers so far.
    pub fn copied(&self) -> u64 {
        self.copied
    }

    /// Returns the bytes buffered in memory.
    pub fn buffered(&self) -> u64 {
        self.pause_buffer.len() * CLUSTER
    }

    /// Returns the number of clusters that remain to be copied.
    pub fn remaining(&self) -> u64 {
        count(self.remaining.iter().cloned())
    }

    /// Returns the bytes of the remaining clusters without space in the copy. The caller reserves the space,
    /// so they count as allocated from now on.
    ///
    /// # Errors
    /// The host does not report where the layer has data.
    pub fn reserve_remaining(&mut self) -> io::Result<u64> {
        let mut new = Clusters::new();
        for gap in self.remaining.iter().flat_map(|range| self.allocated.gaps(range)) {
            new.extend(self.from.with_data(&self.from.layer, self.from.file_range(&gap))?);
        }
        self.allocated.extend(new.clone());
        self.reserved.extend(new.clone());
        Ok(count(new.into_iter()) * CLUSTER)
    }

    /// Copies clusters, while the device works or is halted. `about_to_write` is called with the bytes of
    /// reserved space that are written next. Stops if `goes_on` returns false for the number of remaining
    /// clusters, and returns whether it copied them all.
    ///
    /// # Errors
    /// The host refuses to read the layer or to write the copy, or has no memory.
    pub fn pass(
        &mut self,
        guest: RunState,
        about_to_write: &dyn Fn(u64),
        goes_on: impl Fn(u64) -> bool,
    ) -> io::Result<bool> {
        let mut remaining = self.remaining();
        let max_buffered = match guest {
            RunState::Running if remaining > MAX_BUFFERED / 2 => 0,
            RunState::Running => MAX_BUFFERED / 2,
            RunState::Paused | RunState::Ended => MAX_BUFFERED,
        };
        while let Some(range) = self.remaining.first() {
            if !goes_on(remaining) {
                return Ok(false);
            }
            let (step, is_hole) = self.from.step(range)?;
            let file_range = self.from.file_range(&step);
            if is_hole && max_buffered > 0 {
                self.pause_buffer.add_hole(step.clone(), file_range)?;
            } else if self.pause_buffer.len_with(&step) <= max_buffered {
                self.copied += self.pause_buffer.add_data(step.clone(), &self.from.layer, file_range)?;
            } else {
                about_to_write(self.release(&step));
                self.copied += sparse::stretch(&self.from.layer, &self.to, file_range.clone())?;
                self.pause_buffer.remove(step.clone(), file_range)?;
            }
            remaining -= step.end - step.start;
            self.remaining.remove(step.clone());
            self.recopied.insert(step);
        }
        Ok(true)
    }

    /// Releases the reserved space of these clusters. Returns its bytes.
    fn release(&mut self, clusters: &Range<u64>) -> u64 {
        let reserved = overlap(&self.reserved, clusters);
        self.reserved.remove(clusters.clone());
        reserved * CLUSTER
    }

    /// Moves the buffered clusters to the copy, and makes it a layer, which the caller syncs. Returns the
    /// digest of its map, too. `about_to_write` is as for [`LayerCopy::pass`].
    ///
    /// # Errors
    /// The host refuses to write the copy.
    pub fn finish(mut self, about_to_write: &dyn Fn(u64)) -> io::Result<(File, u64)> {
        let buffered: Vec<_> = self.pause_buffer.clusters().cloned().collect();
        for range in buffered {
            about_to_write(self.release(&range));
            sparse::stretch(self.pause_buffer.memory(), &self.to, self.from.file_range(&range))?;
        }
        self.recopied.iter().for_each(|range| self.from.map.include(range.clone()));
        let identity = self.from.map.write_copy(&self.to)?;
        Ok((self.to, identity.digest))
    }
}

impl LayerSource {
    /// Returns the file that is copied as a whole: the lower layer, or the only one.
    fn whole(&self) -> &File {
        self.below.as_ref().unwrap_or(&self.layer)
    }

    /// Returns the bytes of the host's disk that a copy in `to` takes at most. `shares`: the file that is
    /// copied as a whole shares its blocks.
    fn bytes_in(&self, to: &File, shares: bool) -> u64 {
        let allocated = |file: &File| file.metadata().map_or(0, |metadata| metadata.blocks() * 512);
        let whole = if shares { 0 } else { allocated(self.whole()) };
        let over = self.below.is_some() && !self.shares_layer(to, shares);
        whole + if over { allocated(&self.layer) } else { 0 }
    }

    /// Returns whether the upper layer's clusters share their blocks with a copy in `to`, if `shares` says
    /// so for the file that is copied as a whole. A restored VM's layer may lie in another file system than
    /// those two.
    fn shares_layer(&self, to: &File, shares: bool) -> bool {
        let device = |file: &File| file.metadata().ok().map(|metadata| metadata.dev());
        shares && device(&self.layer).is_some_and(|layer| device(to) == Some(layer))
    }

    /// Returns the range of clusters in a layer's file.
    fn file_range(&self, clusters: &Range<u64>) -> Range<u64> {
        self.map.data() + clusters.start * CLUSTER..self.map.data() + clusters.end * CLUSTER
    }

    /// Returns the first of these clusters to copy in one step, and whether they are a hole. A step of data
    /// is short.
    fn step(&self, clusters: &Range<u64>) -> io::Result<(Range<u64>, bool)> {
        let file_range = self.file_range(clusters);
        let hole = (sparse::next_data(&self.layer, file_range.clone())? - file_range.start) / CLUSTER;
        let len = if hole > 0 { hole } else { STEP };
        Ok((clusters.start..clusters.end.min(clusters.start + len), hole > 0))
    }

    /// Returns the clusters in a range of a layer's file that have data in `file`.
    fn with_data(&self, file: &File, file_range: Range<u64>) -> io::Result<Clusters> {
        let (mut found, first) = (Clusters::new(), self.map.data());
        sparse::each_with_data(file, file_range, |data| {
            found.insert((data.start - first) / CLUSTER..(data.end - first).div_ceil(CLUSTER));
            Ok(())
        })?;
        Ok(found)
    }
}

/// Divides clusters into the steps of the bulk.
fn steps(clusters: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let end = clusters.end;
    (clusters.start..end).step_by(BULK_STEP as usize).map(move |at| at..end.min(at + BULK_STEP))
}

/// Returns the error of a copy.
pub fn failed(id: &str) -> impl Fn(io::Error) -> Error + '_ {
    move |source| Error::file("copy the layer of disk", id, source)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::super::cluster_map::BaseIdentity;
    use super::super::testing::TestDir;
    use super::*;

    /// A clone's layer is a file without a name in another file system than the snapshot's.
    #[test]
    fn room_is_reserved_for_an_upper_layer_whose_blocks_cannot_be_shared() {
        let dir = TestDir::new();
        let open = |name| {
            let options = File::options().read(true).write(true).create_new(true).open(dir.path(name));
            options.unwrap()
        };
        let (below, beside, to) = (open("below"), open("beside"), open("to"));
        let elsewhere = fresh(0).unwrap();
        let base = BaseIdentity { len: 4 * CLUSTER, digest: 0 };
        let mut map = ClusterMap::make(&below, base, false).unwrap();
        below.write_all_at(&[1; CLUSTER as usize], map.data()).unwrap();
        map.include(0..2);
        for layer in [&beside, &elsewhere] {
            ClusterMap::make(layer, base, false).unwrap();
            layer.write_all_at(&[2; CLUSTER as usize], map.data() + CLUSTER).unwrap();
        }
        let allocated = |file: &File| file.metadata().unwrap().blocks() * 512;
        let source = |layer: &File| LayerSource {
            below: Some(below.try_clone().unwrap()),
            layer: layer.try_clone().unwrap(),
            clusters: Clusters::from_iter(std::iter::once(1..2)),
            map: map.clone(),
        };
        assert_eq!(source(&beside).bytes_in(&to, true), 0);
        assert!(allocated(&elsewhere) >= CLUSTER);
        assert_eq!(source(&elsewhere).bytes_in(&to, true), allocated(&elsewhere));
        assert_eq!(source(&elsewhere).bytes_in(&to, false), allocated(&below) + allocated(&elsewhere));
        let mut copy = LayerCopy::begin(source(&elsewhere), to).unwrap();
        let reserved = copy.bytes();
        elsewhere.write_all_at(&[3; CLUSTER as usize], map.data() + 2 * CLUSTER).unwrap();
        assert_eq!(copy.bytes(), reserved, "the layer has grown since the copy began");
        copy.shares = true;
        copy.to.set_len(map.end()).unwrap();
        copy.copy_bulk(&|_| true).unwrap();
        copy.add(Clusters::from_iter(std::iter::once(1..3)));
        assert_eq!(copy.reserve_remaining().unwrap(), CLUSTER, "one of the two clusters has space already");
    }

    #[test]
    fn bulk_stops_in_either_layer() {
        let base = BaseIdentity { len: 64 << 20, digest: 0 };
        let below = fresh(0).unwrap();
        let map = ClusterMap::make(&below, base, false).unwrap();
        let layer = fresh(0).unwrap();
        ClusterMap::make(&layer, base, false).unwrap();
        for file in [&below, &layer] {
            file.write_all_at(&vec![1; 16 << 20], map.data()).unwrap();
        }
        for stop_after in [1 << 20, 20 << 20] {
            let clusters = Clusters::from_iter(std::iter::once(0..(16 << 20) / CLUSTER));
            let (below, layer) = (below.try_clone().unwrap(), layer.try_clone().unwrap());
            let from = LayerSource { below: Some(below), layer, clusters, map: map.clone() };
            let mut copy = LayerCopy::begin(from, fresh(0).unwrap()).unwrap();
            let seen = Cell::new(0);
            let goes_on = |bytes| {
                assert!(seen.get() < stop_after, "it was stopped");
                seen.set(seen.get() + bytes);
                seen.get() < stop_after
            };
            assert!(!copy.copy_bulk(&goes_on).unwrap());
            assert_eq!(copy.copied(), seen.get());
            assert!((stop_after..stop_after + (5 << 20)).contains(&seen.get()), "{}", seen.get());
        }
    }
}
