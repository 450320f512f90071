//! Writes a snapshot of a VM, which goes on meanwhile but for the instant that is captured.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use super::digest::{self, is_zero};
use super::lineage::Lineage;
use super::manifest::{self, BaseSnapshot, Metadata};
use super::{DIFF_FILE, MEMORY_FILE, STATE_FILE, diff, layers};
use crate::capture::{Capture, Course, Target, capture};
use crate::config::VmConfig;
use crate::error::{Error, Result};
use crate::machine::MachineState;
use crate::memory::PAGE;
use crate::memory::pages::PageSet;
use crate::memory::populated::data_ranges;
use crate::store::dir::NewDir;
use crate::vm::Vm;

/// Memory copied at once.
const STEP: u64 = 1 << 20;
/// A diff of more than half of what its base has is a whole snapshot instead; so little is always a diff.
const SMALL_DIFF: u64 = 64 << 20;

/// How a snapshot is to be taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// All of memory, or what differs.
    pub kind: Kind,
}

/// What of memory a snapshot has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// All of it.
    #[default]
    Full,
    /// The pages that differ from the snapshot that the VM was restored from, or from the last full one that was taken of it. One
    /// that would have more than half of that is a full one instead.
    Diff,
}

/// Writes the state and memory of a VM into `dir`. The caller publishes it, and sees to it that nobody else captures the VM. Says
/// what diffs can be relative to from then on, if that changes.
///
/// # Errors
/// The host refuses to tell a part of the state, or to take it (a full disk); the VM is as it was.
pub(crate) fn write(
    vm: &Vm,
    lineage: Option<&Lineage>,
    options: &SnapshotOptions,
    dir: &NewDir,
) -> Result<(Course, Option<Lineage>)> {
    let wanted = match options.kind {
        Kind::Full => None,
        Kind::Diff => Some(lineage.ok_or_else(|| {
            let problem = "a diff is relative to a full snapshot: take one of this VM first";
            Error::config("snapshot_type", problem)
        })?),
    };
    let name = if wanted.is_some() { DIFF_FILE } else { MEMORY_FILE };
    let memory = dir.create(name)?;
    let bytes = vm.config().memory_bytes();
    memory.set_len(bytes).map_err(|source| dir.failed_to_write(name, source))?;
    // Its configuration may change before and after the pause.
    let in_pause = |machine: &_| Ok((vm.config(), layers::save(machine, dir)?));
    let to = Target { file: memory, failed: &|source| dir.failed_to_write(name, source) };
    let none = PageSet::none(bytes);
    // In a full one too: what a diff brought is neither private nor the base's.
    let also = lineage.map_or(&none, |lineage| &lineage.apart);
    let (captured, (config, layers)) = capture(vm, "take a snapshot", (to, also), in_pause)?;
    let wanted = wanted.filter(|_| is_diff(&captured));
    let mut metadata = Metadata::of(&config)?;
    let next = match wanted {
        Some(Lineage { base, .. }) => {
            let digest = base.digest();
            diff::finish(&captured.copy, bytes, digest, &captured.pages)
                .map_err(|source| dir.failed_to_write(name, source))?;
            metadata.base = Some(base.clone());
            None
        }
        None => {
            if name == DIFF_FILE {
                dir.rename(DIFF_FILE, MEMORY_FILE)?;
            }
            let digest = complete(&captured, dir)?;
            let base = BaseSnapshot::new(digest, dir.place());
            metadata.memory_digest = Some(base.memory_digest.clone());
            Some(Lineage { base, apart: Arc::new(captured.pages.clone()) })
        }
    };
    captured.copy.sync_all().map_err(|source| dir.failed_to_write(name, source))?;
    for (name, layer) in layers {
        layer.sync_all().map_err(|source| dir.failed_to_write(&name, source))?;
    }
    write_state(&metadata, &config, &captured.state, dir)?;
    Ok((captured.course, next))
}

/// Writes the state file.
///
/// # Errors
/// The file system refuses it.
pub(super) fn write_state(
    metadata: &Metadata,
    config: &VmConfig,
    state: &MachineState,
    dir: &NewDir,
) -> Result<()> {
    let text = manifest::encode(metadata, config, state)
        .map_err(|source| Error::State { part: "the machine".to_owned(), source })?;
    let file = dir.create(STATE_FILE)?;
    (&file)
        .write_all(&text)
        .and_then(|()| file.sync_all())
        .map_err(|source| dir.failed_to_write(STATE_FILE, source))
}

fn is_diff(captured: &Capture) -> bool {
    let private = captured.pages.len() * PAGE;
    let base = captured.base.metadata().map_or(0, |metadata| metadata.blocks() * 512);
    private <= SMALL_DIFF || private <= base / 2
}

/// Makes what was captured all of memory. Gives the digest.
fn complete(Capture { base, pages, copy, .. }: &Capture, dir: &NewDir) -> Result<u64> {
    let failed = |source| dir.failed_to_write(MEMORY_FILE, source);
    let bytes = copy.metadata().map_err(failed)?.len();
    for range in data_ranges(base, bytes)? {
        fill_in(copy, base, range, pages).map_err(failed)?;
    }
    digest::of_file(copy, bytes, &failed)
}

/// Copies what lies in the base and is not among the pages that are there already. Pages of zeros stay holes.
fn fill_in(memory: &File, base: &File, range: Range<u64>, pages: &PageSet) -> io::Result<()> {
    let mut buffer = vec![0; (range.end - range.start).min(STEP) as usize];
    let mut start = range.start;
    while start < range.end {
        let step = &mut buffer[..(range.end - start).min(STEP) as usize];
        base.read_exact_at(step, start)?;
        write_nonzero(memory, start, step, pages)?;
        start += step.len() as u64;
    }
    Ok(())
}

/// Writes the runs of pages that are neither zero nor in `but`. `bytes` is a whole number of pages.
fn write_nonzero(file: &File, offset: u64, bytes: &[u8], but: &PageSet) -> io::Result<()> {
    let mut run = 0..0;
    for page in bytes.chunks(PAGE as usize) {
        let end = run.end + page.len();
        if but.has(offset + run.end as u64) || is_zero(page) {
            write_run(file, offset, bytes, run)?;
            run = end..end;
        } else {
            run.end = end;
        }
    }
    write_run(file, offset, bytes, run)
}

fn write_run(file: &File, offset: u64, bytes: &[u8], run: Range<usize>) -> io::Result<()> {
    let start = offset + run.start as u64;
    if run.is_empty() { Ok(()) } else { file.write_all_at(&bytes[run], start) }
}
