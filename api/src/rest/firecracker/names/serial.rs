//! Names of the serial port.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use volt_vmm::config::devices::Bucket;

use super::rate_limiter;

/// `PUT /serial`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Serial {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) serial_out_path: Option<PathBuf>,
    /// A bucket of bytes. Drives and networks have two buckets in a field of this name.
    #[serde(default, deserialize_with = "rate_limiter::bucket", skip_serializing_if = "Option::is_none")]
    pub(crate) rate_limiter: Option<Bucket>,
}
