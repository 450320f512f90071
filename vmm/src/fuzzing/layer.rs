//! Layers of disks.

use std::path::Path;

use crate::devices::virtio::block::cluster_map::ClusterMap;
pub use crate::devices::virtio::block::cluster_map::{BaseIdentity, CLUSTER};
use crate::devices::virtio::block::fuzzing;
use crate::error::Result;

/// Returns the identity of a base that a layer over it records.
///
/// # Errors
/// The base cannot be read.
pub fn identity(base: &Path) -> Result<BaseIdentity> {
    fuzzing::identity(base)
}

/// Reads the whole disk that a layer and its base form.
///
/// # Errors
/// As when a VM starts; or the files cannot be read.
pub fn content(base: &Path, layer: &Path) -> Result<Vec<u8>> {
    fuzzing::content(base, layer)
}

/// Returns the offset of the data in a layer over a base, and the offset of the data's end.
#[must_use]
pub fn data(base: BaseIdentity) -> std::ops::Range<u64> {
    let map = ClusterMap::of(base);
    map.data()..map.end()
}
