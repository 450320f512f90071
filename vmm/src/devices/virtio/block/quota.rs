//! The limit of a layer's space on the host's disk, so that a guest cannot fill the disk.
//!
//! A cluster counts from the first write to it, even if that write failed: it may have been executed in
//! part. A cluster counts no longer once all of it was discarded or zeroed, if the file system punches
//! holes: a hole takes no space. On other file systems zeros count as writes, and a discard does nothing.

use std::fs::File;
use std::io;
use std::ops::Range;

use super::cluster_map::{CLUSTER, ClusterMap};
use crate::memory::files::sparse;

/// The clusters of a layer that may take space, and their limit.
#[derive(Debug)]
pub struct LayerQuota {
    max_clusters: u64,
    used: u64,
    /// A bit for each cluster.
    bits: Vec<u8>,
    /// Whether the file system punches holes.
    has_holes: bool,
}

impl LayerQuota {
    /// Limits the layer in `file` to `size` bytes, rounded down to whole clusters. Clusters that take space
    /// count from the start; if the file system reports no holes, the clusters of the map do.
    ///
    /// # Errors
    /// The host does not report where the file has data.
    pub fn new(file: &File, map: &ClusterMap, size: u64) -> io::Result<Self> {
        let data = map.data()..map.end();
        let clusters = (data.end - data.start) / CLUSTER;
        let bits = vec![0; clusters.div_ceil(8) as usize];
        let mut quota =
            Self { max_clusters: size / CLUSTER, used: 0, bits, has_holes: sparse::punches(file)? };
        sparse::each_with_data(file, data.clone(), |found| {
            let (start, end) = (found.start - data.start, found.end - data.start);
            (start / CLUSTER..end.div_ceil(CLUSTER)).for_each(|cluster| quota.set(cluster));
            Ok(())
        })?;
        if quota.used == clusters || !quota.has_holes {
            quota.clear();
            (0..clusters).filter(|cluster| map.has(*cluster)).for_each(|cluster| quota.set(cluster));
        }
        Ok(quota)
    }

    /// Returns whether zeroed and discarded clusters take no space.
    pub fn has_holes(&self) -> bool {
        self.has_holes
    }

    /// Counts these clusters, before they are written.
    ///
    /// # Errors
    /// ENOSPC, as from a full disk, if the clusters exceed the limit. Then none of them counts.
    pub fn take(&mut self, clusters: impl Iterator<Item = u64> + Clone) -> io::Result<()> {
        let new = clusters.clone().filter(|cluster| !self.has(*cluster)).count() as u64;
        if new > 0 && self.used + new > self.max_clusters {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        clusters.for_each(|cluster| self.set(cluster));
        Ok(())
    }

    /// Stops counting these clusters, which are holes now.
    pub fn release(&mut self, clusters: Range<u64>) {
        for cluster in clusters {
            if self.has(cluster) {
                self.bits[(cluster / 8) as usize] &= !(1 << (cluster % 8));
                self.used -= 1;
            }
        }
    }

    /// Stops counting all clusters: the layer is empty.
    pub fn clear(&mut self) {
        self.bits.fill(0);
        self.used = 0;
    }

    fn has(&self, cluster: u64) -> bool {
        self.bits[(cluster / 8) as usize] & 1 << (cluster % 8) != 0
    }

    fn set(&mut self, cluster: u64) {
        if !self.has(cluster) {
            self.bits[(cluster / 8) as usize] |= 1 << (cluster % 8);
            self.used += 1;
        }
    }
}
