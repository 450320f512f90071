//! Makes another snapshot of a snapshot: the same, but for how its memory is stored.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use super::memory::Memory;
use super::pack::source::Repack;
use super::pack::walk::unpack;
use super::pack::{Packing, pack};
use super::raw::RawSource;
use super::{MEMORY_FILE, PACK_FILE, STATE_FILE, WorkingSet, layers, reader};
use crate::error::{Error, Result};
use crate::sparse;
use crate::store::Store;
use crate::store::dir::NewDir;

/// Writes the snapshot `from` once more as `to`, its memory packed as `packing` says, or raw without one. Layers of disks and the working
/// set are carried along. What is read is verified as far as it has checksums. `progress` is told, from any thread, how many bytes of how
/// many of the memory are done.
///
/// # Errors
/// The snapshot is damaged or a diff, the packing makes no sense, or the host refuses; then nothing is left of the new one.
pub fn convert(
    (store, from): (&Store, &str),
    (to_store, to): (&Store, &str),
    packing: Option<&Packing>,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<()> {
    let path = store.path_of(from)?;
    let (manifest, state) = reader::read_manifest(&path)?;
    let len = manifest.metadata.memory_bytes;
    packing.map_or(Ok(()), |packing| packing.validate(len).map(drop))?;
    if manifest.metadata.base.is_some() {
        return Err(Error::snapshot(
            path,
            "is a diff: merge it (snapshot merge), and convert what that makes",
        ));
    }
    let memory = Memory::open(&path, len)?;
    let dir = NewDir::begin(&to_store.path_of(to)?)?;
    let file = dir.create(STATE_FILE)?;
    let failed = |source| Error::file("write", dir.place().join(STATE_FILE).display(), source);
    (&file).write_all(&state).and_then(|()| file.sync_all()).map_err(failed)?;
    if let Some(set) = WorkingSet::open(&path, &manifest.metadata.id, len)? {
        // It is the same snapshot by its id, and its memory has the same pages.
        set.carry(&dir, &manifest.metadata.id, len)?;
    }
    layers::Source::Directory(path).carry(&manifest.config.devices, &dir)?;
    let name = if packing.is_some() { PACK_FILE } else { MEMORY_FILE };
    let (file, place) = (dir.create(name)?, dir.place().join(name));
    write_memory(&memory, len, packing, (&file, &place), &|done| progress(done, len))?;
    file.sync_all().map_err(|source| Error::file("write", place.display(), source))?;
    dir.publish()
}

fn write_memory(
    memory: &Memory,
    len: u64,
    packing: Option<&Packing>,
    (file, place): (&File, &Path),
    progress: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    match (memory, packing) {
        (Memory::Raw(raw, _), None) => {
            sparse::whole(raw, file).map_err(|source| Error::file("write", place.display(), source))
        }
        (Memory::Raw(raw, path), Some(packing)) => {
            let failed = |source| Error::file("read", path.display(), source);
            pack(&RawSource::whole(raw, len, &failed)?, len, packing, (file, place), progress)
        }
        (Memory::Packed(packed), None) => unpack(&packed.pack, (file, place), progress),
        (Memory::Packed(packed), Some(packing)) => {
            pack(&Repack::of(&packed.pack)?, len, packing, (file, place), progress)
        }
    }
}
