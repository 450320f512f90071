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

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;

use super::map::{CLUSTER, Map};
use crate::error::{Error, Result};
use crate::memory::backing::fresh;
use crate::sparse;

/// The clusters that one disk wrote. They are noted while a copy is made.
#[derive(Debug, Default)]
pub struct Noted(Option<BTreeSet<u64>>);

impl Noted {
    pub(super) fn begin(&mut self) {
        self.0 = Some(BTreeSet::new());
    }

    pub(super) fn end(&mut self) {
        self.0 = None;
    }

    /// These bytes of the disk were written, or may have been in part.
    pub(super) fn add(&mut self, at: u64, len: u64) {
        if let Some(clusters) = &mut self.0
            && len > 0
        {
            clusters.extend(at / CLUSTER..(at + len).div_ceil(CLUSTER));
        }
    }

    /// Those that were written since the last call.
    pub(super) fn take(&mut self) -> BTreeSet<u64> {
        self.0.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

/// What a copy is made from.
#[derive(Debug)]
pub struct LayerSource {
    pub(super) below: Option<File>,
    pub(super) layer: File,
    /// The clusters of the layer, in order.
    pub(super) clusters: Vec<u64>,
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
    held: BTreeSet<u64>,
    /// Clusters that are still to be copied.
    left: BTreeSet<u64>,
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
        Ok(Self { from, to, shares, memory, held: BTreeSet::new(), left: BTreeSet::new(), copied: 0 })
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
            let clusters = self.from.clusters.iter().copied();
            let copied = &mut self.copied;
            self.from.each(clusters, |stretch| {
                *copied += sparse::stretch(&self.from.layer, &self.to, stretch)?;
                Ok(())
            })?;
        }
        Ok(())
    }

    /// These clusters are still to be copied.
    pub fn add(&mut self, clusters: BTreeSet<u64>) {
        self.left.extend(clusters);
    }

    /// Bytes that were copied from the layers so far.
    pub fn copied(&self) -> u64 {
        self.copied
    }

    /// Clusters that are still to be copied.
    pub fn left(&self) -> u64 {
        self.left.len() as u64
    }

    /// Copies clusters to memory. Stops where `goes_on` says so of the clusters that are left, and returns whether it did not.
    ///
    /// # Errors
    /// The host refuses to read the layer, or has no memory.
    pub fn pass(&mut self, goes_on: impl Fn(u64) -> bool) -> io::Result<bool> {
        while let Some(cluster) = self.left.first().copied() {
            if !goes_on(self.left()) {
                return Ok(false);
            }
            self.copied += sparse::stretch(&self.from.layer, &self.memory, self.from.stretch(cluster))?;
            self.left.remove(&cluster);
            self.held.insert(cluster);
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
        let held = self.held.iter().copied();
        self.from.each(held, |stretch| sparse::stretch(&self.memory, &self.to, stretch).map(drop))?;
        self.held.iter().for_each(|cluster| self.from.map.include(*cluster..cluster + 1));
        let named = self.from.map.write_copy(&self.to)?;
        Ok((self.to, named.digest))
    }
}

impl LayerSource {
    /// The file that is copied as a whole: what lies below, or all there is.
    fn whole(&self) -> &File {
        self.below.as_ref().unwrap_or(&self.layer)
    }

    /// Where a cluster lies in a layer's file.
    fn stretch(&self, cluster: u64) -> Range<u64> {
        let start = self.map.data() + cluster * CLUSTER;
        start..start + CLUSTER
    }

    /// Clusters in order, those that lie together at once.
    fn each(
        &self,
        clusters: impl Iterator<Item = u64>,
        mut act: impl FnMut(Range<u64>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut run: Option<Range<u64>> = None;
        for stretch in clusters.map(|cluster| self.stretch(cluster)) {
            match &mut run {
                Some(run) if run.end == stretch.start => run.end = stretch.end,
                _ => run.replace(stretch).into_iter().try_for_each(&mut act)?,
            }
        }
        run.into_iter().try_for_each(act)
    }
}

/// The error of a copy.
pub fn failed(id: &str) -> impl Fn(io::Error) -> Error + '_ {
    move |source| Error::file("copy the layer of disk", id, source)
}
