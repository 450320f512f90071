//! Clusters of a copy that stay in memory until the guest runs again, so that no file system delays the
//! pause.

use std::fs::File;
use std::io;
use std::ops::Range;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::retry_on_intr;

use super::clusters::{Clusters, count};
use crate::memory::files::sparse;

/// Clusters in memory, at their offsets in the layer.
#[derive(Debug)]
pub struct PauseBuffer {
    memory: File,
    /// Buffered clusters, including holes.
    clusters: Clusters,
    /// Clusters that take memory.
    data: Clusters,
    /// Number of clusters that take memory.
    len: u64,
}

impl PauseBuffer {
    /// Makes an empty buffer. `memory` is an empty memfd as long as the layer.
    pub fn new(memory: File) -> Self {
        Self { memory, clusters: Clusters::new(), data: Clusters::new(), len: 0 }
    }

    /// Returns the buffered clusters in order.
    pub fn clusters(&self) -> impl Iterator<Item = &Range<u64>> {
        self.clusters.iter()
    }

    pub fn memory(&self) -> &File {
        &self.memory
    }

    /// Returns the number of clusters that take memory.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the number of clusters that take memory once these do.
    pub fn len_with(&self, clusters: &Range<u64>) -> u64 {
        self.len + clusters.end - clusters.start - overlap(&self.data, clusters)
    }

    /// Copies the data of these clusters, which lie at `file_range`. Returns the bytes copied.
    pub fn add_data(&mut self, clusters: Range<u64>, from: &File, file_range: Range<u64>) -> io::Result<u64> {
        let copied = sparse::stretch(from, &self.memory, file_range)?;
        self.len = self.len_with(&clusters);
        self.data.insert(clusters.clone());
        self.clusters.insert(clusters);
        Ok(copied)
    }

    /// Records that these clusters, which lie at `file_range`, are a hole.
    pub fn add_hole(&mut self, clusters: Range<u64>, file_range: Range<u64>) -> io::Result<()> {
        self.remove(clusters.clone(), file_range)?;
        self.clusters.insert(clusters);
        Ok(())
    }

    /// Removes these clusters, which lie at `file_range`.
    pub fn remove(&mut self, clusters: Range<u64>, file_range: Range<u64>) -> io::Result<()> {
        let data = overlap(&self.data, &clusters);
        if data > 0 {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let len = file_range.end - file_range.start;
            retry_on_intr(|| fallocate(&self.memory, punch, file_range.start, len))?;
            self.data.remove(clusters.clone());
            self.len -= data;
        }
        self.clusters.remove(clusters);
        Ok(())
    }
}

/// Returns how many clusters of `range` are in `clusters`.
pub fn overlap(clusters: &Clusters, range: &Range<u64>) -> u64 {
    let parts = clusters.overlapping(range);
    count(parts.map(|part| part.start.max(range.start)..part.end.min(range.end)))
}
