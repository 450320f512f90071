//! A kernel image of any format, checked as a whole and then copied into guest memory.
//!
//! All checks precede the first write. They trust no number from the file: its arithmetic is checked for
//! overflow, and its ranges against the file's length and the guest's RAM.

use std::ops::Range;

use vm_memory::GuestMemory;

use crate::error::Error;
use crate::file::Source;
use crate::layout::{BOOT_STRUCTURES_END, HIMEM, LOW_RAM_END, MMIO_HOLE_END};
use crate::ram::Ram;

/// `COMMAND_LINE_SIZE` of x86 Linux without its terminating NUL, for images that state no limit.
pub(crate) const LINUX_COMMAND_LINE_LIMIT: usize = 2047;

/// The boot protocol and the entry point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// 32-bit protected mode, by Xen's PVH ABI.
    Pvh {
        /// First instruction.
        address: u64,
    },
    /// 64-bit mode, by Documentation/x86/boot.rst.
    Linux64 {
        /// First instruction.
        address: u64,
        /// A bzImage's setup header, from offset 0x1f1 on; an ELF file has none.
        setup_header: Option<Vec<u8>>,
    },
}

/// A range of the file and its place in guest memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The name in messages.
    pub(crate) part: String,
    /// Offset in the file.
    pub(crate) offset: u64,
    /// Length in bytes.
    pub(crate) length: u64,
    /// Guest physical address.
    pub(crate) address: u64,
}

/// A checked image: the pieces to copy, and the kernel's limits for the rest of the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    /// The boot protocol and the entry point.
    pub(crate) entry: Entry,
    /// The pieces to copy.
    pub(crate) pieces: Vec<Piece>,
    /// Guest physical memory that the kernel uses before it reads the memory map, its .bss and decompression
    /// buffer included.
    pub(crate) occupied: Vec<Range<u64>>,
    /// Longest command line in bytes, without the terminating NUL.
    pub(crate) command_line_limit: usize,
    /// Highest end of an initrd below 4 GiB.
    pub(crate) initrd_limit: u64,
    /// Whether the kernel also accepts an initrd above 4 GiB.
    pub(crate) initrd_above_4g: bool,
}

impl Image {
    /// Copies the kernel into guest memory, straight from the file. It leaves .bss out, since guest memory
    /// holds zeros.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::GuestMemory`], [`Error::Truncated`] if the file shrank since it was checked.
    pub(crate) fn copy<M: GuestMemory>(&self, memory: &M, source: &Source<'_>) -> Result<(), Error> {
        self.pieces
            .iter()
            .try_for_each(|piece| source.copy(memory, &piece.part, piece.offset, piece.address, piece.length))
    }
}

/// Checks that the kernel's `part` may lie at `start`, and returns its range.
pub(crate) fn place(
    source: &Source<'_>,
    ram: &Ram,
    part: &str,
    start: u64,
    length: u64,
) -> Result<Range<u64>, Error> {
    let range = start..start.saturating_add(length);
    let outside = |range| {
        Err(Error::OutsideMemory { file: source.name(), part: part.into(), range, memory: ram.size() })
    };
    let free_low_memory = BOOT_STRUCTURES_END..LOW_RAM_END;
    if range.start.checked_add(length).is_none() {
        outside(range)
    } else if range.start < HIMEM && (range.start < free_low_memory.start || range.end > free_low_memory.end)
    {
        Err(Error::OverlapsBootStructures { file: source.name(), part: part.into(), range })
    } else if !ram.contains(&range) {
        outside(range)
    } else if range.end > MMIO_HOLE_END {
        // PVH runs in 32-bit mode without paging, and the 64-bit entry's page tables end at 4 GiB.
        Err(source.problem(format!("its {part} lies above 4 GiB, at {start:#x}")))
    } else {
        Ok(range)
    }
}
