//! Reads layers for tests/fuzz (the feature `fuzzing`), without a device.

use std::path::Path;

use super::cluster_map::{BaseIdentity, CLUSTER};
use super::host_file::{HostFile, OpenMode};
use super::image_files::ImageFiles;
use super::lower_files::LowerFiles;
use crate::config::FileRef;
use crate::error::{Error, Result};

const ID: &str = "disk0";

fn open(base: &Path, layer: Option<&Path>) -> Result<LowerFiles> {
    let layer = layer.map(FileRef::from);
    let base = HostFile::open(ID, &base.into(), OpenMode::Read).map(ImageFiles::One)?;
    LowerFiles::open(ID, base, layer.as_ref(), OpenMode::Read)
}

/// See [`crate::fuzzing::layer::identity`].
pub fn identity(base: &Path) -> Result<BaseIdentity> {
    open(base, None).map(|lower| lower.identity())
}

/// See [`crate::fuzzing::layer::content`].
pub fn content(base: &Path, layer: &Path) -> Result<Vec<u8>> {
    let lower = open(base, Some(layer))?;
    let mut all = vec![0; lower.len() as usize];
    for (at, cluster) in (0..).step_by(CLUSTER as usize).zip(all.chunks_mut(CLUSTER as usize)) {
        lower.read_exact(at, cluster).map_err(|source| Error::file("read", layer.display(), source))?;
    }
    Ok(all)
}
