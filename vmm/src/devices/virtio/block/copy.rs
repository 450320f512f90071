//! A copy of a layer, made while the device writes to the layer.
//!
//! ```text
//!   begin     the layer notes from now on which clusters are written
//!   bulk      the layer below, and the clusters that this one has ──> the copy         the device works
//!   pass      clusters written since ──> memory, again and again                       the device works
//!   last      clusters written since the last pass ──> memory                          the device is halted
//!   finish    memory ──> the copy; its map                                             the device works
//! ```
//!
//! The layer below never changes: it is copied once, and shares its blocks with the copy where the file system can. Each copy has
//! all that the disk has over its base, in one layer.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;

use rangemap::RangeSet;

use super::map::{CLUSTER, Map};
use crate::error::{Error, Result};
use crate::memory::backing::fresh;
use crate::sparse;

/// Clusters, as ranges that do not touch: a discard may be of hundreds of thousands.
pub type Clusters = RangeSet<u64>;

/// Clusters copied between two looks at the clock, unless they are a hole.
const STEP: u64 = (1 << 20) / CLUSTER;

/// The clusters that one disk wrote. They are noted while a copy is made.
#[derive(Debug, Default)]
pub struct Noted(Option<Clusters>);

impl Noted {
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
    pub(super) map: Map,
}

/// The copy.
#[derive(Debug)]
pub struct LayerCopy {
    from: LayerSource,
    to: File,
    /// The file that is copied as a whole shares its blocks with the copy.
    shares: bool,
    /// Clusters that were copied later, at their offsets in the file.
    memory: File,
    held: Clusters,
    /// Clusters that are still to be copied.
    left: Clusters,
    /// Bytes that were copied from the layers so far.
    copied: u64,
}

impl LayerCopy {
    /// Begins a copy in an empty file.
    ///
    /// # Errors
    /// The host has no memory for it.
    pub fn begin(from: LayerSource, to: File) -> Result<Self> {
        let memory = fresh(from.map.end())?;
        let shares = sparse::share(from.whole(), &to);
        Ok(Self { from, to, shares, memory, held: Clusters::new(), left: Clusters::new(), copied: 0 })
    }

    /// Bytes that the copy takes of the host, at most, beside what is written later.
    pub fn bytes(&self) -> u64 {
        let allocated = |file: &File| file.metadata().map_or(0, |metadata| metadata.blocks() * 512);
        let over = if self.from.below.is_some() { allocated(&self.from.layer) } else { 0 };
        if self.shares { 0 } else { allocated(self.from.whole()) + over }
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

    /// Clusters that are still to be copied.
    pub fn left(&self) -> u64 {
        count(&self.left)
    }

    /// Copies clusters to memory. Stops where `goes_on` says so of the clusters that are left, and returns whether it did not.
    ///
    /// # Errors
    /// The host refuses to read the layer, or has no memory.
    pub fn pass(&mut self, goes_on: impl Fn(u64) -> bool) -> io::Result<bool> {
        let mut left = self.left();
        while let Some(range) = self.left.first() {
            if !goes_on(left) {
                return Ok(false);
            }
            let step = self.from.step(range)?;
            self.copied += sparse::stretch(&self.from.layer, &self.memory, self.from.stretch(&step))?;
            left -= step.end - step.start;
            self.left.remove(step.clone());
            self.held.insert(step);
        }
        Ok(true)
    }

    /// Moves to the copy what is in memory, and makes it a layer. It is to be synced. Returns the digest of
    /// its map too.
    ///
    /// # Errors
    /// The host refuses to take the copy.
    pub fn finish(mut self) -> io::Result<(File, u64)> {
        // What is missing of a file that was copied with a hole at its end.
        if self.to.metadata()?.len() < self.from.map.end() {
            self.to.set_len(self.from.map.end())?;
        }
        for range in self.held.iter() {
            sparse::stretch(&self.memory, &self.to, self.from.stretch(range))?;
            self.from.map.include(range.clone());
        }
        let named = self.from.map.write_copy(&self.to)?;
        Ok((self.to, named.digest))
    }
}

impl LayerSource {
    /// The file that is copied as a whole: what lies below, or all there is.
    fn whole(&self) -> &File {
        self.below.as_ref().unwrap_or(&self.layer)
    }

    /// The place of clusters in a layer's file.
    fn stretch(&self, clusters: &Range<u64>) -> Range<u64> {
        self.map.data() + clusters.start * CLUSTER..self.map.data() + clusters.end * CLUSTER
    }

    /// The first of these clusters that are copied at once: a hole as a whole, of data only so much.
    fn step(&self, clusters: &Range<u64>) -> io::Result<Range<u64>> {
        let place = self.stretch(clusters);
        let hole = (sparse::next_data(&self.layer, place.clone())? - place.start) / CLUSTER;
        let len = if hole > 0 { hole } else { STEP };
        Ok(clusters.start..clusters.end.min(clusters.start + len))
    }
}

fn count(clusters: &Clusters) -> u64 {
    clusters.iter().map(|range| range.end - range.start).sum()
}

/// The error of a copy.
pub fn failed(id: &str) -> impl Fn(io::Error) -> Error + '_ {
    move |source| Error::file("copy the layer of disk", id, source)
}
