//! Reads the state file of a snapshot.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, Result};
use crate::snapshot::STATE_FILE;
use crate::snapshot::format::files::open_named;
use crate::snapshot::format::manifest;
use crate::snapshot::format::place::SnapshotDir;

/// The longest state file, in bytes. 32 vCPUs with all devices take a tenth of it.
const LARGEST_STATE: u64 = 32 << 20;
/// First allocation for a state file, in bytes. Few files are longer.
const USUAL_STATE: u64 = 256 << 10;

/// Reads and verifies a snapshot's state file. Returns its bytes too.
pub(crate) fn read_manifest<'a>(
    snapshot: impl Into<SnapshotDir<'a>>,
) -> Result<(manifest::Manifest, Vec<u8>)> {
    let snapshot = snapshot.into();
    read(&snapshot.path().join(STATE_FILE), snapshot.open_regular(STATE_FILE)?)
}

/// As [`read_manifest`], for a state file that the user named.
pub(crate) fn read_named(path: &Path) -> Result<(manifest::Manifest, Vec<u8>)> {
    read(path, open_named(path)?)
}

/// The format version of a snapshot, by its state file.
///
/// # Errors
/// The file is missing, damaged, or of a newer version.
pub fn version_of(state: &Path) -> Result<u32> {
    Ok(read_named(state)?.0.version)
}

fn read(path: &Path, opened: (File, u64)) -> Result<(manifest::Manifest, Vec<u8>)> {
    let file = content(path, opened)?;
    Ok((decode(path, &file)?, file))
}

/// Decodes the state file at `path`, and validates its configuration.
pub(crate) fn decode(path: &Path, file: &[u8]) -> Result<manifest::Manifest> {
    let mut manifest = manifest::decode(file).map_err(|problem| Error::snapshot(path, problem))?;
    let networks = &mut manifest.config.devices.networks;
    networks.iter_mut().for_each(|network| network.backend.trust_descriptor());
    let manifest::Manifest { metadata, config, .. } = &manifest;
    config.validate().map_err(|error| Error::snapshot(path, error.to_string()))?;
    if metadata.memory_bytes != config.memory_bytes() || metadata.vcpus != config.vcpus {
        return Err(Error::snapshot(
            path,
            "contradicts itself: its metadata and its configuration name different memory or vCPUs",
        ));
    }
    Ok(manifest)
}

fn content(path: &Path, (mut file, len): (File, u64)) -> Result<Vec<u8>> {
    if len > LARGEST_STATE {
        return Err(Error::snapshot(
            path,
            format!("is {len} bytes long; a state file has at most {LARGEST_STATE}"),
        ));
    }
    let failed = |source| Error::file("read", path.display(), source);
    let mut bytes = vec![0; len.min(USUAL_STATE) as usize];
    file.read_exact(&mut bytes).map_err(failed)?;
    // Memory for a long file is allocated only if it begins like a state file. A sparse file does not.
    manifest::has_head(&bytes).map_err(|problem| Error::snapshot(path, problem))?;
    if len > USUAL_STATE {
        file.read_to_end(&mut bytes).map_err(failed)?;
    }
    Ok(bytes)
}
