//! Verifies a snapshot: every checksum that there is.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::memory::base::OverlayPages;
use crate::progress::Progress;
use crate::snapshot::disks::layers;
use crate::snapshot::format::digest;
use crate::snapshot::format::pack::walk;
use crate::snapshot::format::raw::RawSource;
use crate::snapshot::format::source::MemorySource;
use crate::snapshot::opened::grant;
use crate::snapshot::opened::grant::Grants;
use crate::snapshot::opened::memory::SnapshotMemory;
use crate::snapshot::opened::relative;
use crate::snapshot::opened::relative::OpenedMemory;
use crate::snapshot::opened::state;
use crate::snapshot::{DIFF_FILE, WorkingSet};
use crate::store::Store;

/// What was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verified {
    /// The state and all of the memory, of a diff its base's too.
    Whole,
    /// The state and what has a checksum. Its version had no digest of raw memory, or of the pages of a diff.
    AllButMemory,
}

/// Verifies the snapshot `name`, on all cores. Of the layers of disks it verifies that they belong to the
/// snapshot and have all their clusters, and not the clusters' data, which has no digest. If it is a diff
/// that this user's volt-vmm did not write, its base must lie in one of the directories `allowed`, as for a
/// restore: errors and durations tell of what is read.
///
/// # Errors
/// [`Error::Snapshot`] names the first thing that is wrong: the state, a file that is missing, or the first bad chunk.
/// [`Error::Cancelled`].
pub fn verify(store: &Store, name: &str, allowed: &[PathBuf], progress: &Progress) -> Result<Verified> {
    let path = store.path_of(name)?;
    let (manifest, file) = state::read_manifest(&path)?;
    let origin = grant::origin_of(&file, &manifest.metadata, &manifest.config);
    let grants = Grants { origin: &origin, snapshot: &path, allowed };
    let metadata = manifest.metadata;
    layers::LayerFiles::Directory(path.clone()).open(&manifest.config.devices, &metadata.layers)?;
    let len = metadata.memory_bytes;
    progress.begin(len);
    WorkingSet::open(&path, &metadata.id, len)?;
    let OpenedMemory { memory, over, digests, .. } =
        relative::open(&path, &metadata, &|base| grants.check_base(base))?;
    let mut verified = Verified::Whole;
    if let Some(OverlayPages { pages, file }) = over {
        let place = path.join(DIFF_FILE);
        let failed = |source| Error::file("read", place.display(), source);
        match digests.over {
            Some(digest) => compare(&place, &RawSource::pages(&file, &pages, &failed), digest, progress)?,
            None => verified = Verified::AllButMemory,
        }
    }
    match verify_whole(&memory, len, digests.memory, progress)? {
        Verified::Whole => Ok(verified),
        part => Ok(part),
    }
}

/// The memory of a snapshot that has all of it.
fn verify_whole(
    memory: &SnapshotMemory,
    len: u64,
    named: Option<u64>,
    progress: &Progress,
) -> Result<Verified> {
    match (memory, named) {
        (SnapshotMemory::Packed(packed), _) => {
            let found = walk::verify(&packed.pack, progress)?;
            named.map_or(Ok(()), |named| is_same(memory.name(), found, named))?;
        }
        (SnapshotMemory::Raw(..), None) => return Ok(Verified::AllButMemory),
        (SnapshotMemory::Raw(file, path), Some(named)) => {
            let failed = |source| Error::file("read", path.display(), source);
            compare(path, &RawSource::whole(file, len, &failed)?, named, progress)?;
        }
    }
    Ok(Verified::Whole)
}

/// Checks the digest of a memory, or of pages.
///
/// # Errors
/// It is another one, or cannot be computed because they cannot be read.
pub(crate) fn compare(path: &Path, memory: &dyn MemorySource, named: u64, progress: &Progress) -> Result<()> {
    is_same(path, digest::of_source(memory, progress)?, named)
}

/// Checks a digest that was computed of the file at `path`.
///
/// # Errors
/// It is another one.
pub(crate) fn is_same(path: &Path, found: u64, named: u64) -> Result<()> {
    if found == named {
        return Ok(());
    }
    let problem = format!("is damaged: the digest of its pages is {found:016x}, not {named:016x}");
    Err(Error::snapshot(path, problem))
}
