//! Merges a diff and its base into a full snapshot.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::verify::{compare, is_same};
use crate::error::{Error, Result};
use crate::memory::base::OverlayPages;
use crate::memory::files::sparse;
use crate::progress::Progress;
use crate::snapshot::format::digest;
use crate::snapshot::format::pack::walk::unpack;
use crate::snapshot::format::raw::RawSource;
use crate::snapshot::opened::memory::SnapshotMemory;
use crate::snapshot::opened::relative::Digests;
use crate::snapshot::restore::open::Snapshot;
use crate::snapshot::take::writer;
use crate::snapshot::{DIFF_FILE, MEMORY_FILE, MemoryFile};
use crate::store::Store;
use crate::store::dir::NewDir;

/// Bytes copied at once.
const STEP: u64 = 1 << 20;

/// Merges `diff` and its base into the snapshot `name` of `to`, which needs neither. A full snapshot is
/// copied. The new memory must have the digest that follows from those of the base and of the diff's pages,
/// so damage is not copied.
///
/// # Errors
/// The base or the diff is damaged, or the file system refuses; [`Error::Cancelled`]. Nothing is left of the
/// new snapshot then.
pub fn merge(diff: &Snapshot, to: &Store, name: &str, progress: &Progress) -> Result<()> {
    let len = diff.metadata().memory_bytes;
    progress.begin(2 * len);
    let dir = NewDir::begin(&to.path_of(name)?)?;
    let failed = |source| dir.failed_to_write(MEMORY_FILE, source);
    let (below, over) = diff.memory();
    let memory = dir.create(MEMORY_FILE)?;
    match below {
        SnapshotMemory::Raw(base, _) => {
            sparse::whole_while(base, &memory, |bytes| progress.add(bytes).is_ok()).map_err(failed)?;
        }
        // Unpacked into its file: it may be larger than the host's memory.
        SnapshotMemory::Packed(packed) => {
            unpack(&packed.pack, (&memory, &dir.place().join(MEMORY_FILE)), progress)?
        }
    }
    progress.reach(len)?;
    let of_covered =
        |over: &OverlayPages| digest::of_source(&RawSource::pages(&memory, &over.pages, &failed), progress);
    let covered = over.map(of_covered).transpose()?;
    over.iter().try_for_each(|pages| put(pages, &memory)).map_err(failed)?;
    let mut metadata = diff.metadata().clone();
    let digest = digest::of_source(&RawSource::whole(&memory, metadata.memory_bytes, &failed)?, progress)?;
    check(diff, below, over.zip(covered), digest, &dir, progress)?;
    memory.sync_all().map_err(failed)?;
    metadata.layers = diff.layers().carry(&diff.config().devices, &metadata.layers, &dir)?;
    if let Some(set) = diff.working_set()? {
        // The new snapshot has the diff's id, and the memory of a VM of the diff.
        set.carry(&dir, &metadata.id, metadata.memory_bytes)?;
    }
    metadata.base = None;
    metadata.memory_digest = Some(digest::format(digest));
    metadata.memory_file = Some(MemoryFile::Raw);
    let marked = diff.origin().can_be_marked();
    writer::write_state(&metadata, diff.config(), diff.machine(), marked, &dir)?;
    dir.publish()
}

/// Checks the digest of the merged memory. A digest is the sum of its pages' shares, so it follows from the
/// digests of base and diff, and of the base's covered pages.
fn check(
    diff: &Snapshot,
    below: &SnapshotMemory,
    over: Option<(&OverlayPages, u64)>,
    merged: u64,
    dir: &NewDir,
    progress: &Progress,
) -> Result<()> {
    let Digests { memory: Some(whole), over: pages_digest } = diff.digests() else { return Ok(()) };
    let name = below.name();
    let Some((OverlayPages { pages, file }, covered)) = over else { return is_same(name, merged, whole) };
    let place = diff.path().join(DIFF_FILE);
    let (in_base, in_diff) = (
        |source| Error::file("read", name.display(), source),
        |source| Error::file("read", place.display(), source),
    );
    let over = RawSource::pages(file, pages, &in_diff);
    let pages_digest = pages_digest.map_or_else(|| digest::of_source(&over, progress), Ok)?;
    if merged == whole.wrapping_sub(covered).wrapping_add(pages_digest) {
        return Ok(());
    }
    let len = diff.metadata().memory_bytes;
    let base = match below {
        SnapshotMemory::Raw(base, _) => Arc::clone(base),
        // Unpacked again into a file, to keep memory small.
        SnapshotMemory::Packed(packed) => {
            let scratch = dir.scratch()?;
            unpack(&packed.pack, (&scratch, &dir.place().join(MEMORY_FILE)), progress)?;
            Arc::new(scratch)
        }
    };
    compare(name, &RawSource::whole(&base, len, &in_base)?, whole, progress)?;
    compare(&place, &over, pages_digest, progress)?;
    Err(Error::snapshot(place, "has changed while it was merged, or its base has"))
}

/// Writes the diff's pages over the base's.
fn put(OverlayPages { pages, file }: &OverlayPages, to: &File) -> io::Result<()> {
    let mut buffer = vec![0; STEP as usize];
    for run in pages.page_ranges() {
        for start in run.clone().step_by(STEP as usize) {
            let step = &mut buffer[..(run.end - start).min(STEP) as usize];
            file.read_exact_at(step, start)?;
            to.write_all_at(step, start)?;
        }
    }
    Ok(())
}
