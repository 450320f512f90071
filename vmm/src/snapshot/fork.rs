//! A snapshot that is only in this process's memory: what a running VM is forked from.
//!
//! The parent's base is the base of its children too. The parent's own pages are captured in memory of their own, which lies over the
//! base in every child and is shared by them; where they are so many that this does not pay, they are made one with the base, and
//! that is what the children have.

use std::sync::Arc;

use super::Snapshot;
use super::captured::CapturedMemory;
use super::layers;
use super::lineage::Lineage;
use super::manifest::Metadata;
use super::writer::is_diff;
use crate::capture::{Target, capture};
use crate::error::{Error, Result};
use crate::memory::backing::{OtherPages, fresh};
use crate::memory::pages::PageSet;
use crate::vm::Vm;

/// Captures a VM, which goes on. Nobody else does meanwhile.
///
/// # Errors
/// The host refuses, or has no memory for its pages.
pub(crate) fn snapshot(vm: &Vm, lineage: Option<&Lineage>) -> Result<Snapshot> {
    let bytes = vm.config().memory_bytes();
    let failed = |source| Error::host("keep a copy of guest memory", source);
    let to = Target { file: fresh(bytes)?, failed: &failed };
    let none = PageSet::none(bytes);
    let also = lineage.map_or(&none, |lineage| &lineage.apart);
    let in_pause = |machine: &_| Ok((vm.config(), layers::hold(machine)?));
    let (captured, (config, layers)) = capture(vm, "fork the VM", (to, also), in_pause)?;
    let pages = Arc::new(captured.pages.clone());
    // What they have from it that is not the parent's lineage's, they have from the start.
    let lineage =
        lineage.map(|Lineage { base, .. }| Lineage { base: base.clone(), apart: Arc::clone(&pages) });
    let shares = is_diff(&captured);
    if !shares {
        CapturedMemory::new(&captured, bytes)?.complete().map_err(failed)?;
    }
    let copy = Arc::new(captured.copy);
    let memory = match shares {
        true => (captured.base, Some(OtherPages { pages, file: copy })),
        false => (copy, None),
    };
    Ok(Snapshot::in_memory((Metadata::of(&config)?, config, captured.state), memory, lineage, layers))
}
