//! Writes a snapshot of a VM, which goes on meanwhile but for the instant that is captured.

use std::io::Write;
use std::time::Duration;

use super::captured::CapturedMemory;
use super::room::{DiskSpace, MemoryToWrite};
use super::small_diff::is_small;
use super::taken::{DiskCapture, VmAtInstant, take};
use crate::config::VmConfig;
use crate::error::{Error, Result};
use crate::machine::MachineState;
use crate::machine::running::Running;
use crate::memory::dirty::freeze;
use crate::memory::page_set::PageSet;
use crate::progress::Progress;
use crate::snapshot::disks::images;
use crate::snapshot::disks::layers::{FinishedLayer, LayerCopies};
use crate::snapshot::format::diff;
use crate::snapshot::format::digest;
use crate::snapshot::format::manifest;
use crate::snapshot::format::manifest::{BaseSnapshot, Metadata};
use crate::snapshot::format::pack::{Packing, pack};
use crate::snapshot::format::raw::RawSource;
use crate::snapshot::history::History;
use crate::snapshot::lineage::{Lineage, PagesToCapture};
use crate::snapshot::opened::grant;
use crate::snapshot::take::capture::{Capture, CaptureRequest, CaptureStats, CopyTarget, SpaceOnDisk};
use crate::snapshot::take::trim::BalloonTrim;
use crate::snapshot::{DIFF_FILE, MEMORY_FILE, MemoryFile, PACK_FILE, STATE_FILE};
use crate::store::dir::NewDir;
use crate::store::writeback;

/// How a snapshot is to be taken.
#[derive(Clone, Debug, Default)]
pub struct SnapshotOptions {
    /// All of memory, or what differs.
    pub kind: SnapshotKind,
    /// How guest memory is packed into `memory.pack`; unless given it goes into `memory.snap` as it is. Diffs are not packed.
    pub packing: Option<Packing>,
    /// The guest's balloon takes all that the guest can spare first, its page cache too, which is not saved then. The guest takes it
    /// back as it goes on, and so does what is restored. It takes a balloon with statistics, and a VM that runs.
    pub trim: bool,
    /// The longest that the guest may stand still; no limit unless given. A guest that writes faster than its pages can be copied has up
    /// to 10 s to write less; then the snapshot fails, and nothing is left of it. A VM that is paused before does not mind how long
    /// it takes.
    pub max_pause: Option<Duration>,
    /// Counts the bytes that were copied and written. Cancels the snapshot: the VM is as it was then.
    pub progress: Progress,
}

/// What of memory a snapshot has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SnapshotKind {
    /// All of it.
    #[default]
    Full,
    /// The pages that differ from the snapshot that the VM was restored from, or from the last full one that was taken of it. Where
    /// these are more than half of that, it is a full one instead, or the next one is.
    Diff,
}

impl SnapshotOptions {
    /// Saves the pages that differ from the VM's last snapshot alone ([`SnapshotKind::Diff`]).
    #[must_use]
    pub fn diff(self) -> Self {
        Self { kind: SnapshotKind::Diff, ..self }
    }

    /// Packs guest memory.
    #[must_use]
    pub fn packing(self, packing: Packing) -> Self {
        Self { packing: Some(packing), ..self }
    }

    /// Has the guest's balloon take the guest's page cache first.
    #[must_use]
    pub fn trim(self) -> Self {
        Self { trim: true, ..self }
    }

    /// Fails if the guest would stand still for longer than `longest`.
    #[must_use]
    pub fn max_pause(self, longest: Duration) -> Self {
        Self { max_pause: Some(longest), ..self }
    }

    /// Reports to `progress`, which can cancel the snapshot.
    #[must_use]
    pub fn progress(self, progress: &Progress) -> Self {
        Self { progress: progress.clone(), ..self }
    }

    /// Checks them, before anything is done, for a guest with this much memory.
    ///
    /// # Errors
    /// [`Error::Config`] names what makes no sense.
    pub fn validate(&self, memory_bytes: u64) -> Result<()> {
        if self.kind == SnapshotKind::Diff && self.packing.is_some() {
            return Err(Error::config(
                "compress",
                "a diff is not packed; merge it into its base and convert that",
            ));
        }
        if self.max_pause.is_some_and(|longest| longest.is_zero()) {
            return Err(Error::config(
                "max_pause_ms",
                "0 allows no pause at all; take 1 or more, or leave it out",
            ));
        }
        self.packing.map_or(Ok(()), |packing| packing.validate(memory_bytes).map(drop))
    }
}

/// Writes the state and memory of a VM into `dir`. The caller publishes it, and sees to it that nobody else captures the VM. Says
/// what diffs of the VM are relative to once that is done.
///
/// # Errors
/// The host refuses to tell a part of the state, or to take it (a full disk); the VM is as it was.
pub(crate) fn write(
    vm: &Running,
    history: &mut History,
    options: &SnapshotOptions,
    dir: &NewDir,
    is_recorded: bool,
) -> Result<(CaptureStats, Lineage)> {
    let bytes = vm.config().memory_bytes();
    let progress = &options.progress;
    // The pages are copied, and then all of memory is written, or packed and read for its digest.
    progress.begin(bytes * if options.packing.is_some() { 3 } else { 2 });
    let over = match options.kind {
        SnapshotKind::Full => None,
        SnapshotKind::Diff => relative_to(vm, history)?,
    };
    let (name, memory) = match (&over, options.packing) {
        (Some(_), _) => (DIFF_FILE, dir.create(DIFF_FILE)?),
        (None, None) => (MEMORY_FILE, dir.create(MEMORY_FILE)?),
        (None, Some(_)) => (PACK_FILE, dir.scratch()?),
    };
    memory.set_len(bytes).map_err(|source| dir.failed_to_write(name, source))?;
    let trimmed = options.trim.then(|| BalloonTrim::of(vm)).transpose()?;
    let layers = LayerCopies::into_directory(vm, dir)?;
    let lazy = history.lazy().cloned();
    let room = DiskSpace::new(dir, written(over.as_ref(), options), layers.bytes(), lazy.clone());
    let beside = DiskCapture { vm, layers, room: Some(&room), trimmed };
    let to =
        CopyTarget { file: memory, failed: &|source| dir.failed_to_write(name, source), disk: Some(&room) };
    let pages = over.as_ref().map_or(&PagesToCapture::NotBase(None), |lineage| &lineage.may_differ);
    // While touches are recorded, pages that are read through the guest's memory would count as touched.
    let reads_base = over.is_none() || is_recorded;
    let request =
        CaptureRequest { act: "take a snapshot", pages, max_pause: options.max_pause, reads_base, progress };
    let VmAtInstant { captured, config, mut metadata, layers } = take(history, &request, to, beside)?;
    progress.reach(bytes)?;
    let next = match over {
        // Where not all of memory was captured there is no other way; the next one is a full one then.
        Some(Lineage { base, may_differ })
            if matches!(may_differ, PagesToCapture::Written(_))
                || is_small(&captured.pages, &captured.base, lazy.as_ref())? =>
        {
            metadata.memory_file = Some(write_diff(&captured, &base, bytes, dir, progress)?);
            metadata.base = Some(base.clone());
            Lineage { base, may_differ: PagesToCapture::Written(captured.pages.clone()) }
        }
        over => {
            if over.is_some() {
                dir.rename(DIFF_FILE, MEMORY_FILE)?;
                // Nothing of the base was wanted for a diff.
                freeze::complete(&vm.on_machine(|machine| machine.shell().ram.clone()))?;
            }
            let (file, digest) = write_whole(&captured, options, &room, dir)?;
            metadata.memory_file = Some(file);
            let base = BaseSnapshot::new(digest, dir.place());
            metadata.memory_digest = Some(base.memory_digest.clone());
            Lineage { base, may_differ: PagesToCapture::Written(PageSet::none(bytes)) }
        }
    };
    for FinishedLayer { name, file, .. } in layers {
        file.sync_all().map_err(|source| dir.failed_to_write(&name, source))?;
    }
    images::sync(vm)?;
    write_state(&metadata, &config, &captured.state, true, dir)?;
    Ok((captured.stats, next))
}

/// What is going to be written into the snapshot's directory. A packed memory has the captured pages beside it while it is packed.
fn written(over: Option<&Lineage>, options: &SnapshotOptions) -> MemoryToWrite {
    match (over.map(|over| &over.may_differ), options.packing) {
        (Some(PagesToCapture::Written(_)), _) | (None, Some(_)) => MemoryToWrite::Pages,
        (Some(PagesToCapture::NotBase(_)), _) => MemoryToWrite::PagesIfFew,
        (None, None) => MemoryToWrite::Whole,
    }
}

/// What a diff of the VM is to be relative to.
fn relative_to(vm: &Running, history: &History) -> Result<Option<Lineage>> {
    let problem = "a diff is relative to a full snapshot: take one of this VM first";
    let lineage = history.lineage.as_ref().ok_or_else(|| Error::config("snapshot_type", problem))?;
    let base = vm.on_machine(|machine| machine.shell().ram.base().file);
    Ok(match &lineage.may_differ {
        PagesToCapture::Written(pages) if !is_small(pages, &base, history.lazy())? => None,
        _ => Some(lineage.clone()),
    })
}

fn write_diff(
    captured: &Capture,
    base: &BaseSnapshot,
    bytes: u64,
    dir: &NewDir,
    progress: &Progress,
) -> Result<MemoryFile> {
    let failed = |source| dir.failed_to_write(DIFF_FILE, source);
    let Capture { copy, pages, .. } = captured;
    // The disk and the digest take their time together.
    writeback::start(copy);
    let digest = digest::of_source(&RawSource::pages(copy, pages, &failed), progress)?;
    let checksum = diff::finish(copy, bytes, base.digest(), pages, digest).map_err(failed)?;
    copy.sync_all().map_err(failed)?;
    Ok(MemoryFile::diff(checksum))
}

/// Writes all of memory, from what was captured. Returns what names the file, and the digest of memory.
fn write_whole(
    captured: &Capture,
    options: &SnapshotOptions,
    room: &DiskSpace<'_>,
    dir: &NewDir,
) -> Result<(MemoryFile, u64)> {
    let bytes = captured.copy.metadata().map_err(|source| dir.failed_to_write(MEMORY_FILE, source))?.len();
    let memory = CapturedMemory::new(captured, bytes)?;
    let progress = &options.progress;
    let Some(packing) = &options.packing else {
        let failed = |source| dir.failed_to_write(MEMORY_FILE, source);
        let mut digest = 0_u64;
        memory.complete(
            &failed,
            |at, step| digest = digest.wrapping_add(digest::of_pages(at, step)),
            |bytes| room.about_to_write(bytes),
            progress,
        )?;
        captured.copy.sync_all().map_err(failed)?;
        return Ok((MemoryFile::Raw, digest));
    };
    let file = dir.create(PACK_FILE)?;
    let packed = pack(&memory, bytes, packing, (&file, &dir.place().join(PACK_FILE)), progress)?;
    writeback::start(&file);
    let digest = digest::of_source(&memory, progress)?;
    file.sync_all().map_err(|source| dir.failed_to_write(PACK_FILE, source))?;
    Ok((MemoryFile::pack(packed), digest))
}

/// Writes the state file, with this user's mark if that is `marked`.
///
/// # Errors
/// The file system refuses it.
pub(crate) fn write_state(
    metadata: &Metadata,
    config: &VmConfig,
    state: &MachineState,
    marked: bool,
    dir: &NewDir,
) -> Result<()> {
    let mark = |body: &[u8]| marked.then(|| grant::mark(metadata, config, body)).flatten();
    let text = manifest::encode(metadata, config, state, mark)
        .map_err(|source| Error::state("the machine", source))?;
    let file = dir.create(STATE_FILE)?;
    (&file)
        .write_all(&text)
        .and_then(|()| file.sync_all())
        .map_err(|source| dir.failed_to_write(STATE_FILE, source))
}
