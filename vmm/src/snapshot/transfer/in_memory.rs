//! A snapshot in this process's memory, from which a running VM is forked.
//!
//! The children share the parent's base. The parent's own pages are captured into a memfd, which lies over
//! the base in every child. If these pages are too many for that, they are merged with the base into one
//! file, which the children map.
//!
//! A fork does not fetch a base that is filled on touch. The children fill it further. Those in this process
//! do so through the same service, those with a shared pager through it. Those in another process without one
//! fill it from the same pack.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::machine::shared::SharedMachine;
use crate::memory::base::OverlayPages;
use crate::memory::dirty::freeze;
use crate::memory::files::memfd::fresh;
use crate::progress::Progress;
use crate::snapshot::Snapshot;
use crate::snapshot::disks::layers::LayerCopies;
use crate::snapshot::history::History;
use crate::snapshot::lineage::{Lineage, PagesToCapture};
use crate::snapshot::opened::memory::CapturedBase;
use crate::snapshot::take::capture::{Capture, CaptureRequest, CaptureStats, CopyTarget};
use crate::snapshot::take::captured::CapturedMemory;
use crate::snapshot::take::small_diff::is_small;
use crate::snapshot::take::taken::{DiskCapture, VmAtInstant, take};

/// Captures a running VM. Returns the times of the capture, too. The caller keeps other captures out.
///
/// # Errors
/// The host refuses, or has no memory for the pages; or [`Error::Cancelled`].
pub(crate) fn snapshot(
    vm: &SharedMachine,
    history: &mut History,
    progress: &Progress,
) -> Result<(Snapshot, CaptureStats)> {
    let bytes = vm.config().memory_bytes();
    progress.begin(bytes);
    let failed = |source| Error::host("keep a copy of guest memory", source);
    let to = CopyTarget { file: fresh(bytes)?, failed: &failed, disk: None };
    let beside = DiskCapture { vm, layers: LayerCopies::without_names(vm)?, room: None, trimmed: None };
    // The children fetch pages on touch, so the fork fetches none.
    let lazy = history.lazy().cloned();
    let reads_base = lazy.is_none();
    let pages = &PagesToCapture::NotBase(None);
    let request = CaptureRequest { act: "fork the VM", pages, max_pause: None, reads_base, progress };
    let VmAtInstant { captured, config, metadata, layers } = take(history, &request, to, beside)?;
    let stats = captured.stats;
    let layers = layers.into_iter().map(|layer| (layer.id, layer.file)).collect();
    let shares = lazy.is_some() || is_small(&captured.pages, &captured.base, None)?;
    if !shares {
        progress.expect(bytes);
        CapturedMemory::new(&captured, bytes)?.complete(&failed, |_, _| (), |_| (), progress)?;
    }
    let lineage = history.lineage.as_ref().map(|lineage| of_child(lineage, &captured));
    // The page tables do not tell what a guest has touched of memory that is filled on touch.
    let working_set = match &lazy {
        None => history.working_set_of_children(bytes, captured.pages.len()),
        Some(_) => None,
    };
    freeze::seal(&captured.copy)?;
    let copy = Arc::new(captured.copy);
    let memory = match shares {
        true => {
            let base = lazy.map_or(CapturedBase::Whole(captured.base), CapturedBase::Lazy);
            (base, Some(OverlayPages { pages: Arc::new(captured.pages), file: copy }))
        }
        false => (CapturedBase::Whole(copy), None),
    };
    let held = history.origin.as_ref().map(|origin| &origin.files);
    let state = (metadata, config, captured.state);
    let snapshot = Snapshot::in_memory(state, memory, lineage, layers, held)?.with_working_set(working_set);
    progress.finish();
    Ok((snapshot, stats))
}

/// The lineage of a child: it may differ where its parent has or had pages of its own.
fn of_child(Lineage { base, may_differ }: &Lineage, captured: &Capture) -> Lineage {
    let mut pages = captured.pages.clone();
    may_differ.pages().into_iter().for_each(|once| pages.add_all(once));
    Lineage { base: base.clone(), may_differ: PagesToCapture::NotBase(Some(Arc::new(pages))) }
}
