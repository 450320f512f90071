//! Guest memory that is read in whole, over no file: what restores would be without mappings. For comparison.

use std::fs::File;

use crate::error::{Error, Result};
use crate::memory::backing::Backing;
use crate::memory::base::OverlayPages;
use crate::memory::files::data::data_ranges;
use crate::memory::ram::GuestRam;

/// Memory of its own with all that is in `base`, as long as that, and with `over` over it.
///
/// # Errors
/// The host refuses memory, or a file cannot be read.
pub fn read_whole(len: u64, base: &File, over: Option<&OverlayPages>) -> Result<GuestRam> {
    let failed = |source| Error::host("read guest memory", source);
    let ram = GuestRam::reserve(len)?;
    Backing::Fresh.map(&ram)?;
    for range in data_ranges(base, len).map_err(failed)? {
        ram.copy_from(range, base).map_err(failed)?;
    }
    if let Some(over) = over {
        over.pages.runs().try_for_each(|run| ram.copy_from(run, &over.file)).map_err(failed)?;
    }
    Ok(ram)
}
