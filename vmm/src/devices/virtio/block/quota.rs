//! The most that a layer may take of the host's disk, so that a guest cannot fill it.
//!
//! A cluster counts from the first write to it, also one that fails and may have been done in part. It counts
//! no longer once all of it was discarded or zeroed, on a file system that punches holes: a hole takes no
//! place. On another one zeros count as other writes do, and a discard does nothing.

use std::fs::File;
use std::io;
use std::ops::Range;

use super::cluster_map::{CLUSTER, ClusterMap};
use crate::memory::files::sparse;

/// The clusters of a layer that may take place, and how many may.
#[derive(Debug)]
pub struct LayerQuota {
    most: u64,
    taken: u64,
    /// A bit for each cluster.
    bits: Vec<u8>,
    /// Whether the file system punches holes.
    has_holes: bool,
}

impl LayerQuota {
    /// Bounds the layer in `file` to `size` bytes in whole clusters. Clusters that take place already count;
    /// where the file system tells of no hole, those of the map.
    ///
    /// # Errors
    /// The host does not tell where the file has data.
    pub fn new(file: &File, map: &ClusterMap, size: u64) -> io::Result<Self> {
        let data = map.data()..map.end();
        let clusters = (data.end - data.start) / CLUSTER;
        let bits = vec![0; clusters.div_ceil(8) as usize];
        let mut bound = Self { most: size / CLUSTER, taken: 0, bits, has_holes: sparse::punches(file)? };
        sparse::each_with_data(file, data.clone(), |found| {
            let (start, end) = (found.start - data.start, found.end - data.start);
            (start / CLUSTER..end.div_ceil(CLUSTER)).for_each(|cluster| bound.set(cluster));
            Ok(())
        })?;
        if bound.taken == clusters || !bound.has_holes {
            bound.clear();
            (0..clusters).filter(|cluster| map.has(*cluster)).for_each(|cluster| bound.set(cluster));
        }
        Ok(bound)
    }

    /// Whether clusters that are zeroed or discarded take no place.
    pub fn has_holes(&self) -> bool {
        self.has_holes
    }

    /// Counts these clusters, before they are written.
    ///
    /// # Errors
    /// ENOSPC, as a full disk gives it, if they are more than there is room for. Then no cluster counts.
    pub fn take(&mut self, clusters: impl Iterator<Item = u64> + Clone) -> io::Result<()> {
        let new = clusters.clone().filter(|cluster| !self.has(*cluster)).count() as u64;
        if new > 0 && self.taken + new > self.most {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        clusters.for_each(|cluster| self.set(cluster));
        Ok(())
    }

    /// These clusters are holes now.
    pub fn give_back(&mut self, clusters: Range<u64>) {
        for cluster in clusters {
            if self.has(cluster) {
                self.bits[(cluster / 8) as usize] &= !(1 << (cluster % 8));
                self.taken -= 1;
            }
        }
    }

    /// The layer is empty.
    pub fn clear(&mut self) {
        self.bits.fill(0);
        self.taken = 0;
    }

    fn has(&self, cluster: u64) -> bool {
        self.bits[(cluster / 8) as usize] & 1 << (cluster % 8) != 0
    }

    fn set(&mut self, cluster: u64) {
        if !self.has(cluster) {
            self.bits[(cluster / 8) as usize] |= 1 << (cluster % 8);
            self.taken += 1;
        }
    }
}
