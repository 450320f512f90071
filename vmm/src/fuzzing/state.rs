//! State files.

use std::path::Path;

use crate::error::{Error, Result};
use crate::snapshot::format::manifest;
use crate::snapshot::opened::state;

/// Decodes a state file as a restore does, and encodes its content again, without a mark.
///
/// # Errors
/// As when a snapshot is opened.
pub fn decoded(path: &Path, file: &[u8]) -> Result<Vec<u8>> {
    let manifest::Manifest { metadata, config, machine, .. } = state::decode(path, file)?;
    manifest::encode(&metadata, &config, &machine, |_| Ok(None))
        .map_err(|source| Error::state("the machine", source))
}

/// Returns the marked bytes of a state file, and its mark.
#[must_use]
pub fn marked(file: &[u8]) -> Option<(&[u8], Vec<u8>)> {
    manifest::marked(file)
}
