//! A copy of a layer, made while the device writes to the layer.
//!
//! ```text
//!   begin     the layer notes from now on which clusters are written
//!   bulk      the layer below, and the clusters that this one has ──> the copy         the device works
//!   pass      clusters written since ──> the copy if they are many, else memory        the device works
//!   last      clusters written since the last pass ──> memory                          the device is halted
//!   finish    memory ──> the copy; its map                                             the device works
//! ```
//!
//! A write to the copy's file may be delayed by the file system until the disk has taken older ones, so the
//! pause writes to memory. Memory has a bound ([`MAX_BUFFERED`]): passes while the device works leave half of it
//! to the pause, and a cluster that does not fit goes to the copy.
//!
//! The layer below never changes: it is copied once, and shares its blocks with the copy where the file system can. Each copy has
//! all that the disk has over its base, in one layer.

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
/// Clusters of one disk that a copy holds in memory at most: 128 MiB.
pub const MAX_BUFFERED: u64 = (128 << 20) / CLUSTER;

/// The clusters that one disk wrote. They are noted while a copy is made.
#[derive(Debug, Default)]
pub struct WriteLog(Option<Clusters>);

impl WriteLog {
    pub(super) fn begin(&mut self) {
        self.0 = Some(Clusters::new());
    }

    pub(super) fn end(&mut self) {
        self.0 = None;
    }

    /// These bytes of the disk were written, or may have been in part.
    pub(super) fn add(&mut self, at: u64, len: u64) {
        if let Some(clusters) = &mut self.0
            && len > 0
        {
            clusters.insert(at / CLUSTER..(at + len).div_ceil(CLUSTER));
        }
    }

    /// Those that were written since the last call.
    pub(super) fn take(&mut self) -> Clusters {
        self.0.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

/// What a copy is made from.
#[derive(Debug)]
pub struct LayerSource {
    pub(super) below: Option<File>,
    pub(super) layer: File,
    /// The clusters of the layer, where there is one below it.
    pub(super) clusters: Clusters,
    /// Everything that the disk has in one of both.
    pub(super) map: ClusterMap,
}

/// The copy.
#[derive(Debug)]
pub struct LayerCopy {
    from: LayerSource,
    to: File,
    /// The file that is copied as a whole shares its blocks with the copy.
    shares: bool,
    /// Bytes that it takes of the host, at most, beside what is written later.
    bytes: u64,
    /// Clusters that were copied later, and are not in the file yet.
    pub(super) pause_buffer: PauseBuffer,
    /// Clusters that are still to be copied.
    left: Clusters,
    /// Clusters that were copied later.
    later: Clusters,
    /// Clusters that have a place in the file, or one that is reserved.
    placed: Clusters,
    /// Those of them that are only reserved.
    reserved: Clusters,
    /// Bytes that were copied from the layers so far.
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
            left: Clusters::new(),
            later: Clusters::new(),
            placed: Clusters::new(),
            reserved: Clusters::new(),
            copied: 0,
        })
    }

    /// Bytes that the copy takes of the host, at most, beside what is written later. It was known when the
    /// copy began: a layer that has grown since must not count as more than was reserved.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies the bulk.
    ///
    /// # Errors
    /// The host refuses to read a layer, or to take the copy.
    pub fn copy_bulk(&mut self) -> io::Result<()> {
        if !self.shares {
            self.copied += sparse::whole(self.from.whole(), &self.to)?;
        }
        if self.from.below.is_some() {
            for range in self.from.clusters.iter() {
                self.copied += sparse::stretch(&self.from.layer, &self.to, self.from.stretch(range))?;
            }
        }
        // A file that was copied with a hole at its end lacks that.
        if self.to.metadata()?.len() < self.from.map.end() {
            self.to.set_len(self.from.map.end())?;
        }
        if !self.shares {
            let all = self.from.map.data()..self.from.map.end();
            self.placed = self.from.with_data(&self.to, all)?;
        } else if !self.from.shares_layer(&self.to, self.shares) {
            for range in self.from.clusters.iter() {
                self.placed.extend(self.from.with_data(&self.to, self.from.stretch(range))?);
            }
        }
        Ok(())
    }

    /// These clusters are still to be copied.
    pub fn add(&mut self, clusters: Clusters) {
        self.left.extend(clusters);
    }

    /// Bytes that were copied from the layers so far.
    pub fn copied(&self) -> u64 {
        self.copied
    }

    /// Bytes that are held in memory.
    pub fn buffered(&self) -> u64 {
        self.pause_buffer.len() * CLUSTER
    }

    /// Clusters that are still to be copied.
    pub fn left(&self) -> u64 {
        count(self.left.iter().cloned())
    }

    /// Bytes of the clusters that are still to be copied and have no place in the copy. The caller reserves
    /// it: they count as placed from now on.
    ///
    /// # Errors
    /// The host does not tell where the layer has data.
    pub fn place_left(&mut self) -> io::Result<u64> {
        let mut new = Clusters::new();
        for gap in self.left.iter().flat_map(|range| self.placed.gaps(range)) {
            new.extend(self.from.with_data(&self.from.layer, self.from.stretch(&gap))?);
        }
        self.placed.extend(new.clone());
        self.reserved.extend(new.clone());
        Ok(count(new.into_iter()) * CLUSTER)
    }

    /// Copies clusters, while the device works or stands still. `about_to_write` is told of bytes that were
    /// reserved and are written next. Stops where `goes_on` says so of the clusters that are left, and
    /// returns whether it did not.
    ///
    /// # Errors
    /// The host refuses to read the layer, has no memory, or does not take the copy.
    pub fn pass(
        &mut self,
        guest: RunState,
        about_to_write: &dyn Fn(u64),
        goes_on: impl Fn(u64) -> bool,
    ) -> io::Result<bool> {
        let mut left = self.left();
        let most_held = match guest {
            RunState::Running if left > MAX_BUFFERED / 2 => 0,
            RunState::Running => MAX_BUFFERED / 2,
            RunState::Paused | RunState::Ended => MAX_BUFFERED,
        };
        while let Some(range) = self.left.first() {
            if !goes_on(left) {
                return Ok(false);
            }
            let (step, is_hole) = self.from.step(range)?;
            let place = self.from.stretch(&step);
            if is_hole && most_held > 0 {
                self.pause_buffer.add_hole(step.clone(), place)?;
            } else if self.pause_buffer.len_with(&step) <= most_held {
                self.copied += self.pause_buffer.add_data(step.clone(), &self.from.layer, place)?;
            } else {
                about_to_write(self.release(&step));
                self.copied += sparse::stretch(&self.from.layer, &self.to, place.clone())?;
                self.pause_buffer.remove(step.clone(), place)?;
            }
            left -= step.end - step.start;
            self.left.remove(step.clone());
            self.later.insert(step);
        }
        Ok(true)
    }

    /// Bytes of these clusters that were reserved. They are not any more.
    fn release(&mut self, clusters: &Range<u64>) -> u64 {
        let reserved = overlap(&self.reserved, clusters);
        self.reserved.remove(clusters.clone());
        reserved * CLUSTER
    }

    /// Moves to the copy what is in memory, and makes it a layer. It is to be synced. Returns the digest of
    /// its map too. `about_to_write` is as for [`LayerCopy::pass`].
    ///
    /// # Errors
    /// The host refuses to take the copy.
    pub fn finish(mut self, about_to_write: &dyn Fn(u64)) -> io::Result<(File, u64)> {
        let held: Vec<_> = self.pause_buffer.clusters().cloned().collect();
        for range in held {
            about_to_write(self.release(&range));
            sparse::stretch(self.pause_buffer.memory(), &self.to, self.from.stretch(&range))?;
        }
        self.later.iter().for_each(|range| self.from.map.include(range.clone()));
        let identity = self.from.map.write_copy(&self.to)?;
        Ok((self.to, identity.digest))
    }
}

impl LayerSource {
    /// The file that is copied as a whole: what lies below, or all there is.
    fn whole(&self) -> &File {
        self.below.as_ref().unwrap_or(&self.layer)
    }

    /// Bytes that a copy in `to` takes of the host, at most. `shares`: it shares the blocks of the file that
    /// is copied as a whole.
    fn bytes_in(&self, to: &File, shares: bool) -> u64 {
        let allocated = |file: &File| file.metadata().map_or(0, |metadata| metadata.blocks() * 512);
        let whole = if shares { 0 } else { allocated(self.whole()) };
        let over = self.below.is_some() && !self.shares_layer(to, shares);
        whole + if over { allocated(&self.layer) } else { 0 }
    }

    /// Whether the clusters of the upper layer share their blocks with a copy in `to`, which `shares` those of
    /// the file that is copied as a whole. A restored VM's layer may lie in another file system than those.
    fn shares_layer(&self, to: &File, shares: bool) -> bool {
        let device = |file: &File| file.metadata().ok().map(|metadata| metadata.dev());
        shares && device(&self.layer).is_some_and(|layer| device(to) == Some(layer))
    }

    /// The place of clusters in a layer's file.
    fn stretch(&self, clusters: &Range<u64>) -> Range<u64> {
        self.map.data() + clusters.start * CLUSTER..self.map.data() + clusters.end * CLUSTER
    }

    /// The first of these clusters that are copied at once, and whether they are a hole: of data only so
    /// much.
    fn step(&self, clusters: &Range<u64>) -> io::Result<(Range<u64>, bool)> {
        let place = self.stretch(clusters);
        let hole = (sparse::next_data(&self.layer, place.clone())? - place.start) / CLUSTER;
        let len = if hole > 0 { hole } else { STEP };
        Ok((clusters.start..clusters.end.min(clusters.start + len), hole > 0))
    }

    /// The clusters at a place in a layer's file that have data in `file`.
    fn with_data(&self, file: &File, place: Range<u64>) -> io::Result<Clusters> {
        let (mut found, first) = (Clusters::new(), self.map.data());
        sparse::each_with_data(file, place, |data| {
            found.insert((data.start - first) / CLUSTER..(data.end - first).div_ceil(CLUSTER));
            Ok(())
        })?;
        Ok(found)
    }
}

/// The error of a copy.
pub fn failed(id: &str) -> impl Fn(io::Error) -> Error + '_ {
    move |source| Error::file("copy the layer of disk", id, source)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::super::cluster_map::BaseIdentity;
    use super::super::testing::TestDir;
    use super::*;

    /// A clone's layer is in a file without a name in another file system than the snapshot's.
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
        assert_eq!(copy.bytes(), reserved, "it has grown since");
        copy.shares = true;
        copy.to.set_len(map.end()).unwrap();
        copy.copy_bulk().unwrap();
        copy.add(Clusters::from_iter(std::iter::once(1..3)));
        assert_eq!(copy.place_left().unwrap(), CLUSTER, "one of them has its place");
    }
}
