//! A kernel image of any format, checked as a whole and then copied into guest memory.
//!
//! Nothing is written before everything is checked, and no check trusts a number from the file: all arithmetic on
//! them is checked for overflow, and all ranges against the file's length and the guest's RAM.

use std::ops::Range;

use vm_memory::GuestMemory;

use crate::error::Error;
use crate::file::Source;
use crate::layout::{BOOT_STRUCTURES_END, HIMEM, LOW_RAM_END, MMIO_HOLE_END};
use crate::ram::Ram;

/// `COMMAND_LINE_SIZE` of x86 Linux without its terminating NUL, for images that do not say.
pub(crate) const LINUX_COMMAND_LINE_LIMIT: usize = 2047;

/// How the kernel wants to be entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// In 32-bit protected mode, as Xen's PVH ABI has it.
    Pvh {
        /// First instruction.
        address: u64,
    },
    /// In 64-bit mode, as Documentation/x86/boot.rst has it.
    Linux64 {
        /// First instruction.
        address: u64,
        /// A bzImage's setup header, from offset 0x1f1 on; an ELF file has none.
        setup_header: Option<Vec<u8>>,
    },
}

/// Some bytes of the file and where they go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// What messages call it.
    pub(crate) part: String,
    /// Offset in the file.
    pub(crate) offset: u64,
    /// Length in bytes.
    pub(crate) length: u64,
    /// Guest physical address.
    pub(crate) address: u64,
}

/// A checked image: what to copy where, and what the kernel says about the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    /// How to enter it.
    pub(crate) entry: Entry,
    /// What to copy.
    pub(crate) pieces: Vec<Piece>,
    /// Guest physical memory the kernel uses before it looks at the memory map (its .bss and decompression buffer
    /// included).
    pub(crate) occupied: Vec<Range<u64>>,
    /// Longest command line in bytes, the terminating NUL not counted.
    pub(crate) command_line_limit: usize,
    /// The initrd must end at or below this address,
    pub(crate) initrd_limit: u64,
    /// unless this is set and it lies above 4 GiB.
    pub(crate) initrd_above_4g: bool,
}

impl Image {
    /// Copies the kernel into guest memory, straight from the file. What the file has no bytes for (.bss) is not
    /// written: guest memory starts out as zeros.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Truncated`] if the file shrank since, [`Error::GuestMemory`].
    pub(crate) fn copy<M: GuestMemory>(&self, memory: &M, source: &Source<'_>) -> Result<(), Error> {
        self.pieces
            .iter()
            .try_for_each(|piece| source.copy(memory, &piece.part, piece.offset, piece.address, piece.length))
    }
}

/// Checks that the kernel's `part` may lie at `start`, and answers with its range.
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
        // no entry's page tables map it
        Err(source.problem(format!("its {part} lies above 4 GiB, at {start:#x}")))
    } else {
        Ok(range)
    }
}
