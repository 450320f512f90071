//! Verifies a snapshot: every checksum that there is.

use super::memory::Memory;
use super::pack::walk;
use super::{layers, reader};
use crate::error::Result;
use crate::store::Store;

/// What was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verified {
    /// The state and all of the packed memory.
    Whole,
    /// The state, and that a raw memory is as long as it should be: it has no checksums.
    AllButMemory,
}

/// Verifies the snapshot `name`, on all cores. `progress` is told, from any thread, how many bytes of how many of the memory are done.
///
/// # Errors
/// [`crate::Error::Snapshot`] names the first thing that is wrong: the state, a file that is missing, or the first bad chunk.
pub fn verify(store: &Store, name: &str, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<Verified> {
    let path = store.path_of(name)?;
    let (manifest, _) = reader::read_manifest(&path)?;
    for layer in layers::of(&path, &manifest.config.devices) {
        reader::open_regular(&path, &layer)?;
    }
    let len = manifest.metadata.memory_bytes;
    match Memory::open(&path, len)? {
        Memory::Raw(..) => Ok(Verified::AllButMemory),
        Memory::Packed(packed) => {
            walk::verify(&packed.pack, &|done| progress(done, len)).map(|()| Verified::Whole)
        }
    }
}
