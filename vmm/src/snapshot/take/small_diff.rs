//! Decides whether a diff is small enough to be worth it.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use crate::error::Result;
use crate::memory::PAGE;
use crate::memory::page_set::PageSet;
use crate::snapshot::opened::memory::LazyMemory;

/// A diff of more than half of what its base has is not worth it; so little is always a diff.
const SMALL_DIFF: u64 = 64 << 20;

/// Whether pages are few beside what their base has. A base that is filled on touch counts as if all of it
/// were there, and is not filled for that: its pack knows.
///
/// # Errors
/// The index of the pack is damaged, or cannot be read.
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
