//! Merges a diff and its base into a full snapshot.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::verify::{compare, is_same};
use crate::error::{Error, Result};
use crate::memory::PAGE;
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
    let dir = NewDir::begin(&to.path_of(name)?)?;
    let failed = |source| dir.failed_to_write(MEMORY_FILE, source);
    let (below, over) = diff.memory()?;
    // One phase copies the base. The others read and write the diff's pages, and read the result.
    let rest = len + phases_of_pages(diff.digests()) * over.map_or(0, |over| over.pages.len() * PAGE);
    progress.begin(len + rest);
    let mut metadata = diff.metadata().clone();
    metadata.layers = diff.layers().carry(&diff.config().devices, &metadata.layers, &dir, progress)?;
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
    progress.reach_all_but(rest)?;
    let of_covered =
        |over: &OverlayPages| digest::of_source(&RawSource::pages(&memory, &over.pages, &failed), progress);
    let covered = over.map(of_covered).transpose()?;
    over.iter().try_for_each(|pages| put(pages, &memory, &failed, progress))?;
    let digest = digest::of_source(&RawSource::whole(&memory, len, &failed)?, progress)?;
    check(diff, below, over.zip(covered), digest, &dir, progress)?;
    memory.sync_all().map_err(failed)?;
    if let Some(set) = diff.working_set()? {
        // The new snapshot has the diff's id, and the memory of a VM of the diff.
        set.carry(&dir, &metadata.id, metadata.memory_bytes)?;
    }
    metadata.base = None;
    metadata.memory_digest = Some(digest::format(digest));
    metadata.memory_file = Some(MemoryFile::Raw);
    let marked = diff.origin().can_be_marked();
    writer::write_state(&metadata, diff.config(), diff.machine(), marked, &dir)?;
    progress.commit()?;
    dir.publish()?;
    progress.finish();
    Ok(())
}

/// How often the diff's pages are worked through: their part of the base is read and they are written.
/// [`check`] reads them if the digest of memory is known and theirs is not.
fn phases_of_pages(digests: Digests) -> u64 {
    if digests.memory.is_some() && digests.over.is_none() { 3 } else { 2 }
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
    // More work: it finds the damaged file.
    progress.expect(len + pages.len() * PAGE);
    let base = match below {
        SnapshotMemory::Raw(base, _) => Arc::clone(base),
        // Unpacked again into a file, to keep memory small.
        SnapshotMemory::Packed(packed) => {
            let scratch = dir.scratch()?;
            progress.expect(len);
            unpack(&packed.pack, (&scratch, &dir.place().join(MEMORY_FILE)), progress)?;
            Arc::new(scratch)
        }
    };
    compare(name, &RawSource::whole(&base, len, &in_base)?, whole, progress)?;
    compare(&place, &over, pages_digest, progress)?;
    Err(Error::snapshot(place, "has changed while it was merged, or its base has"))
}

/// Writes the diff's pages over the base's.
fn put(
    OverlayPages { pages, file }: &OverlayPages,
    to: &File,
    failed: &dyn Fn(io::Error) -> Error,
    progress: &Progress,
) -> Result<()> {
    let mut buffer = vec![0; STEP as usize];
    for run in pages.page_ranges() {
        for start in run.clone().step_by(STEP as usize) {
            let step = &mut buffer[..(run.end - start).min(STEP) as usize];
            file.read_exact_at(step, start).and_then(|()| to.write_all_at(step, start)).map_err(failed)?;
            progress.add(step.len() as u64)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::VmConfig;
    use crate::memory::files::memfd::fresh;
    use crate::memory::page_set::PageSet;
    use crate::snapshot::Metadata;
    use crate::snapshot::opened::memory::CapturedBase;

    const LEN: u64 = 16 << 20;
    /// Bytes of the diff's pages.
    const OVER: u64 = 4 << 20;

    fn diff() -> Snapshot {
        let config = VmConfig { memory_mib: LEN >> 20, ..VmConfig::new("/kernel") };
        let clock = serde_json::json!({"clock": 7, "flags": 0, "realtime": 0, "host_tsc": 0});
        let machine = serde_json::json!({"vcpus": [], "clock": clock, "devices": {}});
        let state =
            (Metadata::of(&config).unwrap(), config.clone(), serde_json::from_value(machine).unwrap());
        let (base, over) = (fresh(LEN).unwrap(), fresh(LEN).unwrap());
        base.write_all_at(&[1; 2 << 20], 1 << 20).unwrap();
        over.write_all_at(&[2; OVER as usize], 2 << 20).unwrap();
        let mut pages = PageSet::none(LEN);
        pages.add(2 << 20..(2 << 20) + OVER);
        let over = OverlayPages { pages: Arc::new(pages), file: Arc::new(over) };
        let base = CapturedBase::Whole(Arc::new(base));
        Snapshot::in_memory(state, (base, Some(over)), None, BTreeMap::new(), None).unwrap()
    }

    #[test]
    fn merge_is_cancelled_in_each_phase_and_otherwise_counts_all() {
        let place = crate::testing::ScratchDir::new();
        let (diff, store) = (diff(), Store::open(place.to_str().unwrap()).unwrap());
        let total = 2 * LEN + 2 * OVER;
        // In the base's copy, in the digest of the covered pages, while the pages are written, and in the
        // digest of the result.
        for at in [1, LEN + 1, LEN + OVER + 1, LEN + 2 * OVER + 1] {
            let progress = Progress::cancelling_at(at);
            assert!(matches!(merge(&diff, &store, "none", &progress), Err(Error::Cancelled)), "{at}");
            assert!((at..total).contains(&progress.done()), "{at}: {progress:?}");
        }
        assert_eq!(std::fs::read_dir(&*place).unwrap().count(), 0);
        let progress = Progress::default();
        merge(&diff, &store, "whole", &progress).unwrap();
        assert_eq!((progress.done(), progress.total()), (total, total));
    }
}
