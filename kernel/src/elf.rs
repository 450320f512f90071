//! ELF kernels: an uncompressed `vmlinux`, or a freestanding guest.
//!
//! With a PVH note the kernel is entered as PVH, without one through the 64-bit Linux boot protocol. 32-bit files are
//! taken if they have the note. Segments go to their physical address; they must not overlap each other, which also
//! bounds what a hostile file can make us copy by the guest's RAM.

use std::ops::Range;

use crate::elf_note;
use crate::error::Error;
use crate::file::Source;
use crate::image::{Entry, Image, LINUX_COMMAND_LINE_LIMIT, Piece, place};
use crate::layout::MMIO_HOLE_START;
use crate::ram::Ram;

/// The first bytes of every ELF file.
pub(crate) const MAGIC: &[u8] = b"\x7fELF";

const CLASS_32: u8 = 1;
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const TYPE_EXECUTABLE: u16 = 2;
const TYPE_SHARED: u16 = 3;
const MACHINE_386: u16 = 3;
const MACHINE_X86_64: u16 = 62;
const SEGMENT_LOAD: u32 = 1;
const SEGMENT_INTERPRETER: u32 = 3;
const SEGMENT_NOTE: u32 = 4;
/// Linux has 5 program headers; this is room enough for anything freestanding.
const SEGMENTS_LIMIT: u16 = 128;

/// Fields of the file header, of either class.
struct Header {
    is_64: bool,
    entry: u64,
    table: u64,
    entry_size: u16,
    count: u16,
}

/// A program header, of either class.
pub(crate) struct Segment {
    kind: u32,
    /// Offset in the file.
    pub(crate) offset: u64,
    /// Guest physical address.
    address: u64,
    /// Bytes in the file.
    pub(crate) file_size: u64,
    /// Bytes in memory.
    memory_size: u64,
    /// Alignment, also that of the notes in a note segment.
    pub(crate) alignment: u64,
}

/// Checks an ELF kernel.
pub(crate) fn inspect(source: &Source<'_>, ram: &Ram) -> Result<Image, Error> {
    let header = read_header(source)?;
    let segments = read_segments(source, &header)?;
    if segments.iter().any(|segment| segment.kind == SEGMENT_INTERPRETER) {
        return Err(source.problem("is a dynamically linked program, not a kernel"));
    }
    let (pieces, occupied) = place_segments(source, ram, &segments)?;
    let notes = segments.iter().filter(|segment| segment.kind == SEGMENT_NOTE);
    let mut pvh = None;
    for segment in notes {
        pvh = match pvh {
            None => elf_note::pvh_entry(source, segment)?,
            found => found,
        };
    }
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

fn read_header(source: &Source<'_>) -> Result<Header, Error> {
    let part = "ELF header";
    let mut ident = [0; 20]; // e_ident, e_type, e_machine
    source.read(part, 0, &mut ident)?;
    let kind = u16::from_le_bytes([ident[16], ident[17]]);
    let machine = u16::from_le_bytes([ident[18], ident[19]]);
    if ident[5] != LITTLE_ENDIAN {
        return Err(source.problem("is a big-endian ELF file; this machine is x86-64"));
    }
    let is_64 = match (ident[4], machine) {
        (CLASS_64, MACHINE_X86_64) => true,
        (CLASS_32, MACHINE_386) => false,
        _ => {
            let name = machine_name(machine);
            return Err(source.problem(format!("is an ELF file for {name}; this machine is x86-64")));
        }
    };
    if !matches!(kind, TYPE_EXECUTABLE | TYPE_SHARED) {
        return Err(source.problem(format!("is an ELF file of type {kind}, not an executable")));
    }
    let mut bytes = [0; 64];
    let bytes = &mut bytes[..if is_64 { 64 } else { 52 }];
    source.read(part, 0, bytes)?;
    Ok(if is_64 {
        Header {
            is_64,
            entry: u64_at(bytes, 24),
            table: u64_at(bytes, 32),
            entry_size: u16_at(bytes, 54),
            count: u16_at(bytes, 56),
        }
    } else {
        Header {
            is_64,
            entry: u32_at(bytes, 24).into(),
            table: u32_at(bytes, 28).into(),
            entry_size: u16_at(bytes, 42),
            count: u16_at(bytes, 44),
        }
    })
}

fn read_segments(source: &Source<'_>, header: &Header) -> Result<Vec<Segment>, Error> {
    let size: u16 = if header.is_64 { 56 } else { 32 };
    if header.count == 0 {
        return Err(source.problem("is an ELF file without program headers"));
    }
    if header.count > SEGMENTS_LIMIT || header.entry_size != size {
        let (count, found) = (header.count, header.entry_size);
        return Err(source.problem(format!(
            "has {count} ELF program headers of {found} bytes; at most {SEGMENTS_LIMIT} of {size} are expected"
        )));
    }
    let mut table = vec![0; usize::from(size) * usize::from(header.count)];
    source.read("ELF program header table", header.table, &mut table)?;
    let parse = |b: &[u8]| match header.is_64 {
        true => Segment {
            kind: u32_at(b, 0),
            offset: u64_at(b, 8),
            address: u64_at(b, 24),
            file_size: u64_at(b, 32),
            memory_size: u64_at(b, 40),
            alignment: u64_at(b, 48),
        },
        false => Segment {
            kind: u32_at(b, 0),
            offset: u32_at(b, 4).into(),
            address: u32_at(b, 12).into(),
            file_size: u32_at(b, 16).into(),
            memory_size: u32_at(b, 20).into(),
            alignment: u32_at(b, 28).into(),
        },
    };
    Ok(table.chunks_exact(size.into()).map(parse).collect())
}

/// What to copy, and the ranges it takes up in memory.
fn place_segments(
    source: &Source<'_>,
    ram: &Ram,
    segments: &[Segment],
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

fn machine_name(machine: u16) -> String {
    match machine {
        MACHINE_386 => "i386".into(),
        MACHINE_X86_64 => "x86-64 of the wrong class".into(),
        40 => "arm".into(),
        183 => "aarch64".into(),
        243 => "RISC-V".into(),
        other => format!("machine {other}"),
    }
}

fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([bytes[offset], bytes[offset + 1]])
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from(u16_at(bytes, offset)) | u32::from(u16_at(bytes, offset + 2)) << 16
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from(u32_at(bytes, offset)) | u64::from(u32_at(bytes, offset + 4)) << 32
}
