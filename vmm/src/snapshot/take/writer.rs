//! Writes a snapshot of a VM. The VM runs meanwhile, except in the pause of the capture.

use std::fmt;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use super::captured::CapturedMemory;
use super::room::{DiskSpace, MemoryToWrite};
use super::small_diff::is_small;
use super::taken::{DiskCapture, VmAtInstant, take};
use crate::config::VmConfig;
use crate::error::{Error, Invalid, Result};
use crate::machine::MachineState;
use crate::machine::shared::SharedMachine;
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

/// Options of a snapshot.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SnapshotOptions {
    /// Full or diff.
    pub kind: SnapshotKind,
    /// Packs guest memory into `memory.pack`; otherwise it goes raw into `memory.snap`. Diffs cannot be
    /// packed.
    pub packing: Option<Packing>,
    /// Inflates the guest's balloon first, so that the guest drops its page cache, which the snapshot then
    /// leaves out. The guest and its clones take the memory back as they run. Needs a balloon with statistics
    /// and a running VM.
    pub trim: bool,
    /// The longest pause of the guest; unlimited by default. A guest that writes faster than its pages can be
    /// copied has up to 10 s to write less. Then the snapshot fails and leaves nothing. The limit does not
    /// hold for a VM that was paused before.
    pub max_pause: Option<Duration>,
    /// A note that the snapshot's metadata keeps for the program that restores it. The library does not read
    /// it.
    pub note: Option<serde_json::Value>,
    /// Called once the VM goes on after the pause. The snapshot is not complete by then.
    pub captured: AtCapture,
    /// Makes a template, in a directory: VMs are restored from it with [`crate::RestoreOptions::of_template`]
    /// alone, and with overrides of all that it names on the host. It does not name the files of this VM, and
    /// diffs of this VM do not get it as their base. Nothing warns that a running guest goes on writing to
    /// its disks.
    pub is_template: bool,
    /// Counts copied and written bytes. Cancelling leaves the VM as it was.
    pub progress: Progress,
}

/// An act at the moment when a snapshot has all that it needs of the running VM.
#[derive(Clone, Default)]
pub struct AtCapture(Option<Arc<dyn Fn() + Send + Sync>>);

impl AtCapture {
    /// Calls `act` at that moment.
    #[must_use]
    pub fn call(act: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self(Some(act))
    }

    pub(crate) fn has_come(&self) {
        self.0.iter().for_each(|act| act());
    }
}

impl fmt::Debug for AtCapture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AtCapture").field(&self.0.is_some()).finish()
    }
}

/// The part of memory that a snapshot has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SnapshotKind {
    /// All of memory.
    #[default]
    Full,
    /// The pages that differ from the snapshot that the VM was restored from, or from its last full snapshot.
    /// If they are more than 64 MiB and more than half of that snapshot's content, this snapshot or the next
    /// one is full instead.
    Diff,
}

impl SnapshotOptions {
    /// Saves only the pages that differ from the VM's last snapshot ([`SnapshotKind::Diff`]).
    #[must_use]
    pub fn diff(self) -> Self {
        Self { kind: SnapshotKind::Diff, ..self }
    }

    /// The part of memory that the snapshot has.
    #[must_use]
    pub fn kind(self, kind: SnapshotKind) -> Self {
        Self { kind, ..self }
    }

    /// Packs guest memory.
    #[must_use]
    pub fn packing(self, packing: impl Into<Option<Packing>>) -> Self {
        Self { packing: packing.into(), ..self }
    }

    /// Inflates the guest's balloon first, so that the guest drops its page cache.
    #[must_use]
    pub fn trim(self) -> Self {
        Self { trim: true, ..self }
    }

    /// Fails if the guest would be paused for longer than `longest`.
    #[must_use]
    pub fn max_pause(self, longest: Duration) -> Self {
        Self { max_pause: Some(longest), ..self }
    }

    /// Reports to `progress`, which can cancel the snapshot.
    #[must_use]
    pub fn progress(self, progress: &Progress) -> Self {
        Self { progress: progress.clone(), ..self }
    }

    /// Checks the options for a guest with `memory_bytes` of memory, before any work.
    ///
    /// # Errors
    /// [`Error::Config`] names the option that is wrong.
    pub fn validate(&self, memory_bytes: u64) -> Result<()> {
        if self.kind == SnapshotKind::Diff && self.packing.is_some() {
            return Err(Error::config("packing", Invalid::PackedDiff));
        }
        if self.max_pause.is_some_and(|longest| longest.is_zero()) {
            return Err(Error::config("max_pause", Invalid::NoPause));
        }
        self.packing.map_or(Ok(()), |packing| packing.validate(memory_bytes))
    }
}

/// Writes a VM's state and memory into `dir`. The caller publishes `dir`, and keeps other captures out.
/// Returns the lineage for the VM's next diff, valid once `dir` is published.
///
/// # Errors
/// The host refuses to save a part of the state, the disk is full, or [`Error::Cancelled`]. The VM is as it
/// was.
pub(crate) fn write(
    vm: &SharedMachine,
    history: &mut History,
    options: &SnapshotOptions,
    dir: &NewDir,
    is_recorded: bool,
) -> Result<(CaptureStats, Lineage)> {
    let bytes = vm.config().memory_bytes();
    let progress = &options.progress;
    // One phase copies the pages. Raw memory is written in a second; packing and its digest take two.
    let to_write = bytes * if options.packing.is_some() { 2 } else { 1 };
    progress.begin(bytes + to_write);
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
    let trimmed = options.trim.then(|| BalloonTrim::of(vm, progress)).transpose()?;
    let layers = LayerCopies::into_directory(vm, dir)?;
    let lazy = history.lazy().cloned();
    let (reserve, written) = (|bytes| dir.reserve(bytes), written(over.as_ref(), options));
    let room = DiskSpace::new(&reserve, written, layers.bytes(), lazy.clone(), progress);
    let beside = DiskCapture { vm, layers, room: Some(&room), trimmed };
    let to =
        CopyTarget { file: memory, failed: &|source| dir.failed_to_write(name, source), disk: Some(&room) };
    let pages = over.as_ref().map_or(&PagesToCapture::NotBase(None), |lineage| &lineage.may_differ);
    // While a recording runs, pages read through guest memory would count as touched.
    let reads_base = over.is_none() || is_recorded;
    let request =
        CaptureRequest { act: "take a snapshot", pages, max_pause: options.max_pause, reads_base, progress };
    let VmAtInstant { captured, config, mut metadata, layers } = take(history, &request, to, beside)?;
    options.captured.has_come();
    metadata.note.clone_from(&options.note);
    progress.reach_all_but(to_write)?;
    let next = match over {
        // A capture of only written pages can only become a diff. The next snapshot is a full one then.
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
                // A diff did not need the base, so it was not frozen.
                freeze::complete(&vm.on_machine(|machine| machine.shell().ram.clone()), progress)?;
            }
            let (file, digest) = write_whole(&captured, bytes, options, &room, dir)?;
            metadata.memory_file = Some(file);
            let base = BaseSnapshot::new(digest, dir.place());
            metadata.memory_digest = Some(base.memory_digest.clone());
            Lineage { base, may_differ: PagesToCapture::Written(PageSet::none(bytes)) }
        }
    };
    for FinishedLayer { name, file, .. } in layers {
        progress.check()?;
        file.sync_all().map_err(|source| dir.failed_to_write(&name, source))?;
    }
    images::sync(vm)?;
    let config = if options.is_template { config.as_template() } else { config };
    write_state(&metadata, &config, &captured.state, true, dir)?;
    Ok((captured.stats, next))
}

/// The part of memory that the snapshot's directory will hold. While memory is packed, the captured pages lie
/// beside the pack.
fn written(over: Option<&Lineage>, options: &SnapshotOptions) -> MemoryToWrite {
    match (over.map(|over| &over.may_differ), options.packing) {
        (Some(PagesToCapture::Written(_)), _) | (None, Some(_)) => MemoryToWrite::Pages,
        (Some(PagesToCapture::NotBase(_)), _) => MemoryToWrite::PagesIfFew,
        (None, None) => MemoryToWrite::Whole,
    }
}

/// The lineage for a diff of the VM. Absent if the diff would be too large.
fn relative_to(vm: &SharedMachine, history: &History) -> Result<Option<Lineage>> {
    let problem = "a diff needs a full snapshot of this VM as its base; take a full snapshot first";
    let lineage = history.lineage.as_ref().ok_or_else(|| Error::config("kind", problem))?;
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
    // The disk writes while the digest is computed.
    writeback::start(copy);
    let digest = digest::of_source(&RawSource::pages(copy, pages, &failed), progress)?;
    let checksum = diff::finish(copy, bytes, base.digest(), pages, digest).map_err(failed)?;
    copy.sync_all().map_err(failed)?;
    Ok(MemoryFile::diff(checksum))
}

/// Writes all of memory from a capture. Returns what identifies the file, and the digest of memory.
fn write_whole(
    captured: &Capture,
    bytes: u64,
    options: &SnapshotOptions,
    room: &DiskSpace<'_>,
    dir: &NewDir,
) -> Result<(MemoryFile, u64)> {
    let memory = CapturedMemory::new(captured, bytes)?;
    let progress = &options.progress;
    let Some(packing) = &options.packing else {
        let failed = |source| dir.failed_to_write(MEMORY_FILE, source);
        let mut digest = 0_u64;
        let add = |at, step: &[u8]| digest = digest.wrapping_add(digest::of_pages(at, step));
        memory.complete(&failed, add, |bytes| room.about_to_write(bytes), progress)?;
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

/// Writes the state file, with this user's mark if `marked`.
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
    let text = encode_state(metadata, config, state, marked)?;
    let file = dir.create(STATE_FILE)?;
    (&file)
        .write_all(&text)
        .and_then(|()| file.sync_all())
        .map_err(|source| dir.failed_to_write(STATE_FILE, source))
}

/// Makes the content of a state file, with this user's mark if `marked`.
///
/// # Errors
/// The state has no JSON, or the user's key cannot be read.
pub(crate) fn encode_state(
    metadata: &Metadata,
    config: &VmConfig,
    state: &MachineState,
    marked: bool,
) -> Result<Vec<u8>> {
    let mark = |body: &[u8]| if marked { grant::mark(metadata, config, body) } else { Ok(None) };
    manifest::encode(metadata, config, state, mark)
}
