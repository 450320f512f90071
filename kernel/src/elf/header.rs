//! The ELF file header and program headers; 32-bit and 64-bit files fill the same fields.

use crate::error::Error;
use crate::file::Source;

const CLASS_32: u8 = 1;
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const TYPE_EXECUTABLE: u16 = 2;
const TYPE_SHARED: u16 = 3;
const MACHINE_386: u16 = 3;
const MACHINE_X86_64: u16 = 62;
/// Most program headers of a file; Linux has 5.
const SEGMENTS_LIMIT: u16 = 128;

/// The file header of a 32-bit or 64-bit file.
pub(super) struct Header {
    /// Whether the file is 64-bit.
    pub(super) is_64: bool,
    /// Address of the first instruction.
    pub(super) entry: u64,
    table: u64,
    entry_size: u16,
    count: u16,
}

/// A program header of a 32-bit or 64-bit file.
pub(super) struct ElfSegment {
    /// `PT_LOAD` and so on.
    pub(super) kind: u32,
    /// Offset in the file.
    pub(super) offset: u64,
    /// Guest physical address.
    pub(super) address: u64,
    /// Bytes in the file.
    pub(super) file_size: u64,
    /// Bytes in memory.
    pub(super) memory_size: u64,
    /// Alignment of the segment, and of the notes in a note segment.
    pub(super) alignment: u64,
}

/// Reads the file header.
///
/// # Errors
/// If the file is no executable for this machine.
pub(super) fn read_header(source: &Source<'_>) -> Result<Header, Error> {
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

/// Reads the program headers.
pub(super) fn read_segments(source: &Source<'_>, header: &Header) -> Result<Vec<ElfSegment>, Error> {
    let size: u16 = if header.is_64 { 56 } else { 32 };
    if header.count == 0 {
        return Err(source.problem("is an ELF file without program headers"));
    }
    if header.count > SEGMENTS_LIMIT || header.entry_size != size {
        let (count, found) = (header.count, header.entry_size);
        return Err(source.problem(format!(
            "has {count} ELF program headers of {found} bytes; \
             at most {SEGMENTS_LIMIT} of {size} are expected"
        )));
    }
    let mut table = vec![0; usize::from(size) * usize::from(header.count)];
    source.read("ELF program header table", header.table, &mut table)?;
    let parse = |b: &[u8]| match header.is_64 {
        true => ElfSegment {
            kind: u32_at(b, 0),
            offset: u64_at(b, 8),
            address: u64_at(b, 24),
            file_size: u64_at(b, 32),
            memory_size: u64_at(b, 40),
            alignment: u64_at(b, 48),
        },
        false => ElfSegment {
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
