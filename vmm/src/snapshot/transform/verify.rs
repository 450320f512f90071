//! Verifies every checksum of a snapshot.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::memory::PAGE;
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

/// Extent of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verified {
    /// The state and all of memory; for a diff, its base's too.
    Whole,
    /// The state only, and packed parts of memory: the snapshot's version had no digest of raw memory, or of
    /// a diff's pages.
    AllButMemory,
}

/// Verifies the snapshot `name` on all cores. Layers of disks must belong to the snapshot and have all their
/// clusters; the clusters' data has no digest. The base of a diff that this user's volt-vmm did not write
/// must lie in one of the directories `allowed`, as for a restore. Errors and durations would reveal facts
/// about other files.
///
/// # Errors
/// [`Error::Snapshot`] names the first fault: of the state, a missing file, or the first bad chunk.
/// [`Error::Cancelled`].
pub fn verify(store: &Store, name: &str, allowed: &[PathBuf], progress: &Progress) -> Result<Verified> {
    let path = store.path_of(name)?;
    let (manifest, file) = state::read_manifest(&path)?;
    let origin = grant::origin_of(&file, &manifest.metadata, &manifest.config);
    let grants = Grants::of_paths(&origin, &path, allowed);
    let metadata = manifest.metadata;
    layers::LayerFiles::Directory(path.clone()).open(&manifest.config.devices, &metadata.layers)?;
    let len = metadata.memory_bytes;
    WorkingSet::open(&path, &metadata.id, len)?;
    let OpenedMemory { memory, over, digests, .. } =
        relative::open(&path, &metadata, &|base| grants.check_base(base))?;
    let of_pages = over.as_ref().filter(|_| digests.over.is_some()).map_or(0, |over| over.pages.len() * PAGE);
    progress.begin(of_pages + bytes_to_verify(&memory, len, digests.memory));
    let mut verified = Verified::Whole;
    if let Some(OverlayPages { pages, file }) = over {
        let place = path.join(DIFF_FILE);
        let failed = |source| Error::file("read", place.display(), source);
        match digests.over {
            Some(digest) => compare(&place, &RawSource::pages(&file, &pages, &failed), digest, progress)?,
            None => verified = Verified::AllButMemory,
        }
    }
    let whole = verify_whole(&memory, len, digests.memory, progress)?;
    progress.finish();
    Ok(if whole == Verified::Whole { verified } else { whole })
}

/// The bytes that [`verify_whole`] works through.
fn bytes_to_verify(memory: &SnapshotMemory, len: u64, named: Option<u64>) -> u64 {
    match memory {
        SnapshotMemory::Packed(packed) => len + packed.pack.verified_len(),
        SnapshotMemory::Raw(..) => named.map_or(0, |_| len),
    }
}

/// Verifies complete memory.
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

/// Computes and checks the digest of a memory, or of pages.
///
/// # Errors
/// The digest differs, or the memory cannot be read.
pub(crate) fn compare(path: &Path, memory: &dyn MemorySource, named: u64, progress: &Progress) -> Result<()> {
    is_same(path, digest::of_source(memory, progress)?, named)
}

/// Checks a digest computed from the file at `path`.
///
/// # Errors
/// The digest differs.
pub(crate) fn is_same(path: &Path, found: u64, named: u64) -> Result<()> {
    if found == named {
        return Ok(());
    }
    let problem = format!("is damaged: the digest of its pages is {found:016x}, not {named:016x}");
    Err(Error::snapshot(path, problem))
}
