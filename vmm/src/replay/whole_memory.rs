//! Reads whole guest memory, as a restore without mappings would. Serves comparisons.

use std::fs::File;

use crate::error::{Error, Result};
use crate::memory::backing::Backing;
use crate::memory::base::OverlayPages;
use crate::memory::files::data::data_ranges;
use crate::memory::ram::GuestRam;

/// Copies `len` bytes of `base`, and the pages `over` it, into new memory.
///
/// # Errors
/// Returns an error if the host refuses memory, or if a file cannot be read.
pub fn read_whole(len: u64, base: &File, over: Option<&OverlayPages>) -> Result<GuestRam> {
    let failed = |source| Error::host("read guest memory", source);
    let ram = GuestRam::reserve(len)?;
    Backing::Fresh.map(&ram)?;
    for range in data_ranges(base, len).map_err(failed)? {
        ram.copy_from(range, base).map_err(failed)?;
    }
    if let Some(over) = over {
        over.pages.page_ranges().try_for_each(|run| ram.copy_from(run, &over.file)).map_err(failed)?;
    }
    Ok(ram)
}
