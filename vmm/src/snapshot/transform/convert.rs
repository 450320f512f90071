//! Converts a snapshot: writes the same snapshot with its memory in another format.

use std::fs::File;
use std::path::Path;

use super::verify::is_same;
use crate::error::{Error, Result};
use crate::memory::files::sparse;
use crate::progress::Progress;
use crate::snapshot::disks::layers;
use crate::snapshot::format::digest;
use crate::snapshot::format::manifest;
use crate::snapshot::format::pack::source::Repack;
use crate::snapshot::format::pack::walk;
use crate::snapshot::format::pack::{Pack, Packing, pack};
use crate::snapshot::format::raw::RawSource;
use crate::snapshot::opened::grant;
use crate::snapshot::opened::memory::SnapshotMemory;
use crate::snapshot::opened::state;
use crate::snapshot::take::writer;
use crate::snapshot::{MEMORY_FILE, MemoryFile, PACK_FILE, WorkingSet};
use crate::store::Store;
use crate::store::dir::NewDir;

/// Writes the snapshot `from` as `to`, with its memory packed as `packing` says, or raw without it. Keeps
/// layers of disks and the working set. Reads the new memory back, which must have the digest that the old
/// state names, so damage is not copied.
///
/// # Errors
/// The snapshot is damaged or a diff, the packing is invalid, or the host refuses; [`Error::Cancelled`].
/// Nothing is left of the new snapshot then.
pub fn convert(
    (store, from): (&Store, &str),
    (to_store, to): (&Store, &str),
    packing: Option<&Packing>,
    progress: &Progress,
) -> Result<()> {
    let path = store.path_of(from)?;
    let (manifest::Manifest { mut metadata, config, machine, .. }, state) = state::read_manifest(&path)?;
    // Converting another user's snapshot does not make this user its author.
    let marked = grant::origin_of(&state, &metadata, &config).can_be_marked();
    let len = metadata.memory_bytes;
    progress.begin(2 * len);
    packing.map_or(Ok(()), |packing| packing.validate(len))?;
    if metadata.base.is_some() {
        return Err(Error::snapshot(
            path,
            "is a diff, which cannot be converted: merge it into its base, then convert the merged snapshot",
        ));
    }
    let memory = SnapshotMemory::open(&path, len, metadata.memory_file.as_ref())?;
    let dir = NewDir::begin(&to_store.path_of(to)?)?;
    if let Some(set) = WorkingSet::open(&path, &metadata.id, len)? {
        // The new snapshot has the same id and the same pages.
        set.carry(&dir, &metadata.id, len)?;
    }
    metadata.layers =
        layers::LayerFiles::Directory(path).carry(&config.devices, &metadata.layers, &dir, progress)?;
    let name = if packing.is_some() { PACK_FILE } else { MEMORY_FILE };
    let (file, place) = (dir.create(name)?, dir.place().join(name));
    write_memory(&memory, len, packing, (&file, &place), progress)?;
    progress.reach_all_but(len)?;
    file.sync_all().map_err(|source| Error::file("write", place.display(), source))?;
    let (written, found) = read_back(&file, &place, len, packing.is_some(), progress)?;
    let named = metadata.memory_digest.as_deref().map(digest::parse);
    named.map_or(Ok(()), |named| is_same(memory.name(), found, named))?;
    metadata.memory_digest = Some(digest::format(found));
    metadata.memory_file = Some(written);
    writer::write_state(&metadata, &config, &machine, marked, &dir)?;
    progress.commit()?;
    dir.publish()?;
    progress.finish();
    Ok(())
}

/// Verifies the written memory. Returns what identifies its file, and the digest of its content.
fn read_back(
    file: &File,
    place: &Path,
    len: u64,
    packed: bool,
    progress: &Progress,
) -> Result<(MemoryFile, u64)> {
    let failed = |source| Error::file("read", place.display(), source);
    if !packed {
        let digest = digest::of_source(&RawSource::whole(file, len, &failed)?, progress)?;
        return Ok((MemoryFile::Raw, digest));
    }
    let pack = Pack::open(file.try_clone().map_err(failed)?, place)?;
    progress.expect(pack.verified_len());
    Ok((MemoryFile::pack(pack.digest()), walk::verify(&pack, progress)?))
}

fn write_memory(
    memory: &SnapshotMemory,
    len: u64,
    packing: Option<&Packing>,
    (file, place): (&File, &Path),
    progress: &Progress,
) -> Result<()> {
    match (memory, packing) {
        (SnapshotMemory::Raw(raw, _), None) => {
            let copied = sparse::whole_while(raw, file, |bytes| progress.add(bytes).is_ok());
            copied.map_err(|source| Error::file("write", place.display(), source))?;
            progress.check()
        }
        (SnapshotMemory::Raw(raw, path), Some(packing)) => {
            let failed = |source| Error::file("read", path.display(), source);
            let source = RawSource::whole(raw, len, &failed)?;
            pack(&source, len, packing, (file, place), progress).map(drop)
        }
        (SnapshotMemory::Packed(packed), None) => walk::unpack(&packed.pack, (file, place), progress),
        (SnapshotMemory::Packed(packed), Some(packing)) => {
            pack(&Repack::of(&packed.pack)?, len, packing, (file, place), progress).map(drop)
        }
    }
}
