//! Names of the file of metrics.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `PUT /metrics`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MetricsFile {
    pub(crate) metrics_path: PathBuf,
}
