//! The initrd: its place, the highest free address that the kernel accepts, and files that the host adds.

pub mod archive;

use std::ops::Range;

use crate::error::{Error, Size};
use crate::file::Source;
use crate::image::Image;
use crate::layout::{HIMEM, MMIO_HOLE_END};
use crate::ram::Ram;

const PAGE: u64 = 4096;

/// Finds the highest page-aligned gap for the initrd below the kernel's limit.
///
/// If no gap below fits, searches above 4 GiB for a kernel that accepts an initrd there.
///
/// # Errors
/// [`Error::InitrdTooLarge`], [`Error::NoRoomForInitrd`].
pub(crate) fn place(source: &Source<'_>, ram: &Ram, image: &Image) -> Result<Range<u64>, Error> {
    let (length, memory) = (source.length(), ram.size());
    if length > memory.0 {
        return Err(Error::InitrdTooLarge { file: source.name(), size: Size(length), memory });
    }
    let limit = image.initrd_limit;
    let highest = |bounds: Range<u64>| {
        ram.free(&bounds, &image.occupied).into_iter().rev().find_map(|gap| {
            let start = gap.end.checked_sub(length)? / PAGE * PAGE;
            (start >= gap.start).then_some(start..start + length)
        })
    };
    highest(HIMEM..limit)
        .or_else(|| if image.initrd_above_4g { highest(MMIO_HOLE_END..u64::MAX) } else { None })
        .ok_or_else(|| Error::NoRoomForInitrd { file: source.name(), size: Size(length), limit, memory })
}

#[cfg(test)]
mod tests;
