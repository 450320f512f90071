//! The record of a stored image, as JSON.

use oci_spec::image::Digest;
use serde::{Deserialize, Serialize};

/// Where an image came from.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ImageRecord {
    /// Digest of its manifest, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<Digest>,
    /// Its layers, the lowest first.
    pub layers: Vec<LayerRecord>,
    /// Seconds from 1970 to when it was stored.
    pub stored: u64,
}

/// Where a layer came from.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct LayerRecord {
    /// Digest of the plain stream, which names the layer.
    pub diff_id: Digest,
    /// Digest of the stream as it came.
    pub digest: Digest,
    /// Bytes of the stream as it came.
    pub size: u64,
}
