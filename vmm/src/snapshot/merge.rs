//! Folds a diff into its base: a snapshot that stands for itself.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::manifest::BaseSnapshot;
use super::raw::RawSource;
use super::reader::Snapshot;
use super::{MEMORY_FILE, digest, writer};
use crate::error::Result;
use crate::memory::backing::OtherPages;
use crate::sparse;
use crate::store::Store;
use crate::store::dir::NewDir;

/// Bytes copied at once.
const STEP: u64 = 1 << 20;

/// Writes `name` of `to`: the snapshot `diff` and its base as one, which needs neither of them. A snapshot that is no diff is copied.
///
/// # Errors
/// The file system refuses; then nothing is left of it.
pub fn merge(diff: &Snapshot, to: &Store, name: &str) -> Result<()> {
    let dir = NewDir::begin(&to.path_of(name)?)?;
    let failed = |source| dir.failed_to_write(MEMORY_FILE, source);
    let (base, over) = diff.memory();
    let memory = dir.create(MEMORY_FILE)?;
    let base = base.base()?;
    sparse::whole(&base, &memory).map_err(failed)?;
    over.iter().try_for_each(|pages| put(pages, &memory)).map_err(failed)?;
    let mut metadata = diff.metadata().clone();
    let digest = digest::of_source(&RawSource::whole(&memory, metadata.memory_bytes, &failed)?, &|_, _| ())?;
    memory.sync_all().map_err(failed)?;
    diff.layers().carry(&diff.config().devices, &dir)?;
    if let Some(set) = diff.working_set()? {
        // It keeps the diff's id, and has the memory that a VM of the diff has.
        set.carry(&dir, &metadata.id, metadata.memory_bytes)?;
    }
    metadata.base = None;
    metadata.memory_digest = Some(BaseSnapshot::new(digest, dir.place()).memory_digest);
    writer::write_state(&metadata, diff.config(), diff.machine(), &dir)?;
    dir.publish()
}

/// Puts pages over those of a base.
fn put(OtherPages { pages, file }: &OtherPages, to: &File) -> io::Result<()> {
    let mut buffer = vec![0; STEP as usize];
    for run in pages.runs() {
        for start in run.clone().step_by(STEP as usize) {
            let step = &mut buffer[..(run.end - start).min(STEP) as usize];
            file.read_exact_at(step, start)?;
            to.write_all_at(step, start)?;
        }
    }
    Ok(())
}
