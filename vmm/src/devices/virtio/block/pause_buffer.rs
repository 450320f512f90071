//! Clusters of a copy that are kept in memory until the guest runs on, so that no file system delays the
//! pause.

use std::fs::File;
use std::io;
use std::ops::Range;

use rustix::fs::{FallocateFlags, fallocate};

use super::clusters::{Clusters, count};
use crate::memory::files::sparse;

/// See the module. They lie at their offsets in the layer.
#[derive(Debug)]
pub struct PauseBuffer {
    memory: File,
    /// Those that are held, holes too.
    clusters: Clusters,
    /// Those that take memory.
    data: Clusters,
    /// The number of the latter.
    len: u64,
}

impl PauseBuffer {
    /// `memory` is an empty memfd as long as the layer.
    pub fn new(memory: File) -> Self {
        Self { memory, clusters: Clusters::new(), data: Clusters::new(), len: 0 }
    }

    /// The clusters, in order.
    pub fn clusters(&self) -> impl Iterator<Item = &Range<u64>> {
        self.clusters.iter()
    }

    pub fn memory(&self) -> &File {
        &self.memory
    }

    /// How many clusters take memory.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// How many would take memory if these did.
    pub fn len_with(&self, clusters: &Range<u64>) -> u64 {
        self.len + clusters.end - clusters.start - overlap(&self.data, clusters)
    }

    /// Copies data of these clusters, which lie at `place`.
    pub fn add_data(&mut self, clusters: Range<u64>, from: &File, place: Range<u64>) -> io::Result<u64> {
        let copied = sparse::stretch(from, &self.memory, place)?;
        self.len = self.len_with(&clusters);
        self.data.insert(clusters.clone());
        self.clusters.insert(clusters);
        Ok(copied)
    }

    /// These clusters, which lie at `place`, are a hole.
    pub fn add_hole(&mut self, clusters: Range<u64>, place: Range<u64>) -> io::Result<()> {
        self.remove(clusters.clone(), place)?;
        self.clusters.insert(clusters);
        Ok(())
    }

    /// Gives up these clusters, which lie at `place`.
    pub fn remove(&mut self, clusters: Range<u64>, place: Range<u64>) -> io::Result<()> {
        let data = overlap(&self.data, &clusters);
        if data > 0 {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&self.memory, punch, place.start, place.end - place.start)?;
            self.data.remove(clusters.clone());
            self.len -= data;
        }
        self.clusters.remove(clusters);
        Ok(())
    }
}

/// How many of `range` are among the clusters.
pub fn overlap(clusters: &Clusters, range: &Range<u64>) -> u64 {
    let parts = clusters.overlapping(range);
    count(parts.map(|part| part.start.max(range.start)..part.end.min(range.end)))
}
