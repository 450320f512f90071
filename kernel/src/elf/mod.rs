//! ELF kernels: an uncompressed `vmlinux`, or a freestanding guest.
//!
//! PVH enters a kernel that has a PVH note, and the 64-bit Linux boot protocol one without. A 32-bit file
//! needs the note.
//!
//! Segments go to their physical addresses. They must not overlap, so that a hostile file copies no more than
//! the guest's RAM holds.

mod header;
mod note;

use std::ops::Range;

use crate::error::Error;
use crate::file::Source;
use crate::image::{Entry, Image, LINUX_COMMAND_LINE_LIMIT, Piece, place};
use crate::layout::MMIO_HOLE_START;
use crate::ram::Ram;
use header::{ElfSegment, read_header, read_segments};

/// The first bytes of every ELF file.
pub(crate) const MAGIC: &[u8] = b"\x7fELF";

const SEGMENT_LOAD: u32 = 1;
const SEGMENT_INTERPRETER: u32 = 3;
const SEGMENT_NOTE: u32 = 4;

/// Checks an ELF kernel.
pub(crate) fn inspect(source: &Source<'_>, ram: &Ram) -> Result<Image, Error> {
    let header = read_header(source)?;
    let segments = read_segments(source, &header)?;
    if segments.iter().any(|segment| segment.kind == SEGMENT_INTERPRETER) {
        return Err(source.problem("is a dynamically linked program, not a kernel"));
    }
    let (pieces, occupied) = place_segments(source, ram, &segments)?;
    let notes = segments.iter().filter(|segment| segment.kind == SEGMENT_NOTE);
    let pvh = notes.map(|notes| note::pvh_entry(source, notes)).find_map(Result::transpose).transpose()?;
    let (address, what) = pvh.map_or((header.entry, "entry point"), |address| (address, "PVH entry point"));
    if !occupied.iter().any(|range| range.contains(&address)) {
        return Err(source.problem(format!("its {what} {address:#x} lies in none of its segments")));
    }
    if pvh.is_none() && !header.is_64 {
        return Err(source.problem("is a 32-bit ELF file without a PVH entry point"));
    }
    let entry = match pvh {
        Some(address) => Entry::Pvh { address },
        None => Entry::Linux64 { address, setup_header: None },
    };
    Ok(Image {
        initrd_above_4g: pvh.is_none(),
        entry,
        pieces,
        occupied,
        command_line_limit: LINUX_COMMAND_LINE_LIMIT,
        initrd_limit: MMIO_HOLE_START,
    })
}

/// Returns the pieces to copy, and the ranges that the segments occupy in memory.
fn place_segments(
    source: &Source<'_>,
    ram: &Ram,
    segments: &[ElfSegment],
) -> Result<(Vec<Piece>, Vec<Range<u64>>), Error> {
    let mut pieces = Vec::new();
    let mut occupied = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        if segment.kind != SEGMENT_LOAD || (segment.memory_size == 0 && segment.file_size == 0) {
            continue;
        }
        let part = format!("segment {index}");
        if segment.file_size > segment.memory_size {
            return Err(source.problem(format!("its {part} is larger in the file than in memory")));
        }
        source.check(&part, segment.offset, segment.file_size)?;
        let range = place(source, ram, &part, segment.address, segment.memory_size)?;
        occupied.push(range);
        if segment.file_size > 0 {
            let (offset, length) = (segment.offset, segment.file_size);
            pieces.push(Piece { part, offset, length, address: segment.address });
        }
    }
    if pieces.is_empty() {
        return Err(source.problem("is an ELF file with nothing to load"));
    }
    occupied.sort_by_key(|range| range.start);
    if let Some([low, high]) = occupied.array_windows().find(|[low, high]| low.end > high.start) {
        let (low, high) = (low.start, high.start);
        return Err(source.problem(format!("its segments at {low:#x} and {high:#x} overlap")));
    }
    Ok((pieces, occupied))
}

#[cfg(test)]
mod tests;
