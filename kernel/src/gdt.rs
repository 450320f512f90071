//! The GDT and the matching segment registers, for both boot protocols.
//!
//! Descriptors are encoded from the [`Segment`] that the VMM loads into the vCPU's hidden registers, so that
//! table and registers agree (Intel SDM volume 3 section 3.4.5).

use vm_memory::GuestMemory;

use crate::entry::Segment;
use crate::error::Error;
use crate::guest::write;
use crate::layout::GDT;

/// `__BOOT_CS` of Documentation/x86/boot.rst.
const CODE_SELECTOR: u16 = 0x10;
/// `__BOOT_DS`.
const DATA_SELECTOR: u16 = 0x18;
/// The task state segment, which takes two entries in 64-bit mode.
const TASK_SELECTOR: u16 = 0x20;
/// Null, unused, code, data, task (two).
const ENTRIES: usize = 6;

// Segment types (Intel SDM volume 3 sections 3.4.5.1 and 3.5): accessed, so that a load writes no descriptor.
const EXECUTE_READ_ACCESSED: u8 = 0xb;
const READ_WRITE_ACCESSED: u8 = 0x3;
/// Busy TSS, 32-bit or 64-bit: the type in a loaded task register.
const BUSY_TASK: u8 = 0xb;

/// Makes CS: flat 4 GiB, 64-bit or 32-bit.
pub(crate) fn code(long: bool) -> Segment {
    Segment { kind: EXECUTE_READ_ACCESSED, big: !long, long, ..flat(CODE_SELECTOR) }
}

/// Makes DS, ES, FS, GS and SS: flat 4 GiB.
pub(crate) fn data() -> Segment {
    Segment { kind: READ_WRITE_ACCESSED, big: true, ..flat(DATA_SELECTOR) }
}

/// Makes TR: base 0 and limit 0x67, by the PVH ABI.
pub(crate) fn task() -> Segment {
    Segment { selector: TASK_SELECTOR, limit: 0x67, kind: BUSY_TASK, ..Segment::default() }
}

fn flat(selector: u16) -> Segment {
    Segment { selector, limit: u32::MAX, code_or_data: true, granular: true, ..Segment::default() }
}

/// Highest valid offset of the table.
pub(crate) const LIMIT: u16 = (ENTRIES * 8 - 1) as u16;

/// Writes the table for an entry in 64-bit (`long`) or 32-bit mode.
pub(crate) fn place<M: GuestMemory>(memory: &M, long: bool) -> Result<(), Error> {
    let mut table = [0; ENTRIES];
    for segment in [code(long), data(), task()] {
        table[usize::from(segment.selector / 8)] = descriptor(&segment);
    }
    write(memory, "GDT", GDT, table.map(u64::to_le_bytes).as_flattened())
}

/// Encodes a present descriptor of privilege level 0.
///
/// A 64-bit system segment has a second half, bits 63:32 of the base, which is 0.
fn descriptor(segment: &Segment) -> u64 {
    let limit = u64::from(if segment.granular { segment.limit >> 12 } else { segment.limit });
    let flag = |set: bool, bit: u32| u64::from(set) << bit;
    (limit & 0xffff)
        | (segment.base & 0xff_ffff) << 16
        | u64::from(segment.kind) << 40
        | flag(segment.code_or_data, 44)
        | flag(true, 47)
        | (limit >> 16 & 0xf) << 48
        | flag(segment.long, 53)
        | flag(segment.big, 54)
        | flag(segment.granular, 55)
        | (segment.base >> 24 & 0xff) << 56
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_equal_linuxs_own() {
        // GDT_ENTRY_INIT of arch/x86, with the accessed bit.
        assert_eq!(descriptor(&code(true)), 0x00af_9b00_0000_ffff);
        assert_eq!(descriptor(&code(false)), 0x00cf_9b00_0000_ffff);
        assert_eq!(descriptor(&data()), 0x00cf_9300_0000_ffff);
        assert_eq!(descriptor(&task()), 0x0000_8b00_0000_0067);
    }
}
