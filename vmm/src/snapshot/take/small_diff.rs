//! Decides whether a diff is small enough to be worth writing.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use crate::error::Result;
use crate::memory::PAGE;
use crate::memory::page_set::PageSet;
use crate::snapshot::opened::memory::LazyMemory;

/// A diff up to this size is always worth writing; beyond it, one of at most half of its base.
const SMALL_DIFF: u64 = 64 << 20;

/// Whether `pages` are few compared with their base. A base that faults fill counts as complete, by its
/// pack's index, and is not filled for this.
///
/// # Errors
/// The index of the pack is damaged or cannot be read.
pub(crate) fn is_small(pages: &PageSet, base: &File, lazy: Option<&LazyMemory>) -> Result<bool> {
    let bytes = pages.len() * PAGE;
    if bytes <= SMALL_DIFF {
        return Ok(true);
    }
    let base = match lazy {
        Some(lazy) => lazy.memory.populated()?,
        None => base.metadata().map_or(0, |metadata| metadata.blocks() * 512),
    };
    Ok(bytes <= base / 2)
}
