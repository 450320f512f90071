//! Verifies a snapshot: every checksum that there is.

use std::path::Path;

use super::diff::Listed;
use super::memory::Memory;
use super::pack::{Source, walk};
use super::raw::RawSource;
use super::{BaseSnapshot, DIFF_FILE, WorkingSet, digest, layers, reader, relative};
use crate::error::{Error, Result};
use crate::store::Store;

/// What was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verified {
    /// The state and all of the memory, of a diff its base's too.
    Whole,
    /// The state, and that a raw memory is as long as it should be: its snapshot is of a version that had no digest of it.
    AllButMemory,
}

/// Verifies the snapshot `name`, on all cores. `progress` is told, from any thread, how many bytes of how many of the memory are done.
///
/// # Errors
/// [`Error::Snapshot`] names the first thing that is wrong: the state, a file that is missing, or the first bad chunk.
pub fn verify(store: &Store, name: &str, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<Verified> {
    let path = store.path_of(name)?;
    let (manifest, _) = reader::read_manifest(&path)?;
    layers::Source::Directory(path.clone()).open(&manifest.config.devices)?;
    let metadata = manifest.metadata;
    let len = metadata.memory_bytes;
    WorkingSet::open(&path, &metadata.id, len)?;
    let Some(base) = metadata.base else {
        let digest =
            metadata.memory_digest.map(|digest| BaseSnapshot { memory_digest: digest, path: path.clone() });
        return verify_whole(&path, len, digest.as_ref(), progress);
    };
    let base = relative::find_base(&path, &base)?;
    let (file, Listed { pages, digest }) = relative::open_pages(&path, len, &base)?;
    let place = path.join(DIFF_FILE);
    let failed = |source| Error::file("read", place.display(), source);
    compare(&place, &RawSource::pages(&file, &pages, &failed), digest, &|_, _| ())?;
    verify_whole(&base.path, len, Some(&base), progress)
}

/// The memory of a snapshot that has all of it.
fn verify_whole(
    snapshot: &Path,
    len: u64,
    named: Option<&BaseSnapshot>,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Verified> {
    match (Memory::open(snapshot, len)?, named) {
        (Memory::Packed(packed), _) => walk::verify(&packed.pack, &|done| progress(done, len))?,
        (Memory::Raw(..), None) => return Ok(Verified::AllButMemory),
        (Memory::Raw(file, path), Some(named)) => {
            let failed = |source| Error::file("read", path.display(), source);
            compare(&path, &RawSource::whole(&file, len, &failed)?, named.digest(), progress)?;
        }
    }
    Ok(Verified::Whole)
}

fn compare(path: &Path, memory: &dyn Source, named: u64, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<()> {
    let found = digest::of_source(memory, progress)?;
    if found == named {
        return Ok(());
    }
    let problem = format!("is damaged: the digest of its pages is {found:016x}, not {named:016x}");
    Err(Error::snapshot(path, problem))
}
