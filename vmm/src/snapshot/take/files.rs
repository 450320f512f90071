//! Writes a snapshot of a VM into two files ([`crate::snapshot::format::files`]).
//!
//! The memory of a diff has the pages that changed since the VM's last snapshot, of whatever form; everything
//! else is a hole. A changed page of zeros is written, so a hole means that the page is as it was. If there
//! is a memory file of the right length already, the pages go over a copy of it, as Firecracker writes a diff
//! into the file of the snapshot before it.

use std::io::Write;

use super::captured::CapturedMemory;
use super::room::{DiskSpace, MemoryToWrite};
use super::taken::{DiskCapture, VmAtInstant, take};
use super::writer::encode_state;
use super::writer::{SnapshotKind, SnapshotOptions};
use crate::error::{Error, Invalid, Result};
use crate::machine::shared::SharedMachine;
use crate::memory::files::sparse;
use crate::progress::Progress;
use crate::snapshot::disks::images;
use crate::snapshot::disks::layers::LayerCopies;
use crate::snapshot::history::History;
use crate::snapshot::lineage::PagesToCapture;
use crate::snapshot::take::capture::{CaptureRequest, CaptureStats, CopyTarget, SpaceOnDisk};
use crate::snapshot::take::trim::BalloonTrim;
use crate::store::files::NewFiles;

/// Writes a VM's state and memory into `files`, which the caller publishes. The caller keeps other captures
/// out.
///
/// # Errors
/// A disk has a layer, the host refuses to save a part of the state, the disk is full, or
/// [`Error::Cancelled`]. The VM is as it was.
pub(crate) fn write(
    vm: &SharedMachine,
    history: &mut History,
    options: &SnapshotOptions,
    files: &NewFiles,
    is_recorded: bool,
) -> Result<CaptureStats> {
    let bytes = vm.config().memory_bytes();
    let progress = &options.progress;
    progress.begin(2 * bytes);
    let changed = match options.kind {
        SnapshotKind::Full => None,
        SnapshotKind::Diff => changed_since_last(history)?,
    };
    let failed = |source| files.memory.failed_to_write(source);
    let file = files.memory.file().try_clone().map_err(failed)?;
    file.set_len(bytes).map_err(failed)?;
    if changed.is_some() {
        copy_old(files, bytes, progress)?;
    }
    let trimmed = options.trim.then(|| BalloonTrim::of(vm, progress)).transpose()?;
    let lazy = history.lazy().cloned();
    let written = if changed.is_some() { MemoryToWrite::Pages } else { MemoryToWrite::Whole };
    let reserve = |bytes| files.reserve(bytes);
    let room = DiskSpace::new(&reserve, written, 0, lazy, progress);
    let beside = DiskCapture { vm, layers: LayerCopies::default(), room: Some(&room), trimmed };
    let to = CopyTarget { file, failed: &failed, disk: Some(&room) };
    let pages = changed.as_ref().unwrap_or(&PagesToCapture::NotBase(None));
    // While a recording runs, pages read through guest memory would count as touched.
    let reads_base = changed.is_none() || is_recorded;
    let request =
        CaptureRequest { act: "take a snapshot", pages, max_pause: options.max_pause, reads_base, progress };
    let VmAtInstant { captured, config, mut metadata, .. } = take(history, &request, to, beside)?;
    options.captured.has_come();
    metadata.note.clone_from(&options.note);
    progress.reach_all_but(bytes)?;
    if changed.is_none() {
        let memory = CapturedMemory::new(&captured, bytes)?;
        memory.complete(&failed, |_, _| (), |bytes| room.about_to_write(bytes), progress)?;
    }
    images::sync(vm)?;
    let text = encode_state(&metadata, &config, &captured.state, true)?;
    files.state.file().write_all(&text).map_err(|source| files.state.failed_to_write(source))?;
    Ok(captured.stats)
}

/// Copies the memory file that will be replaced, if it can be one of this VM.
fn copy_old(files: &NewFiles, bytes: u64, progress: &Progress) -> Result<()> {
    let new = &files.memory;
    let Some((old, len)) = new.old()? else { return Ok(()) };
    if len == bytes {
        let copied = sparse::whole_while(&old, new.file(), |_| progress.check().is_ok());
        copied.map_err(|source| new.failed_to_write(source))?;
    }
    progress.check()
}

/// Refuses a VM with layers, which are files of a snapshot's directory.
///
/// # Errors
/// Names the disk.
pub(crate) fn refuse_layers(vm: &SharedMachine) -> Result<()> {
    match vm.config().devices.disks.iter().find(|disk| disk.layer.is_some()) {
        Some(disk) => Err(Error::config("memory", Invalid::LayerBesideFiles { disk: disk.id.clone() })),
        None => Ok(()),
    }
}

/// The pages that a diff has. Absent for a VM that was booted and has no snapshot yet: its diff is complete.
fn changed_since_last(history: &History) -> Result<Option<PagesToCapture>> {
    match &history.since_last {
        Some(pages) => Ok(Some(pages.clone())),
        None if history.origin.is_none() => Ok(None),
        None => {
            let problem = "a diff needs a snapshot of this VM before it; take a full snapshot first";
            Err(Error::config("kind", problem))
        }
    }
}
