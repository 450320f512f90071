//! The layout of guest physical memory. All addresses and sizes are in bytes.
//!
//! ```text
//! 0x500      GDT                       0x20000   command line
//! 0x5ff0     boot stack, downwards     0x9fc00   end of usable low memory
//! 0x6000     PVH start info, modules   0xe0000   ACPI: RSDP, then the tables
//! 0x7000     PVH memory map            0xfe000   generation id
//! 0x8000     zero page (boot_params)   0xff000   VMClock
//! 0x9000     page tables               0x100000  kernel from here on; initrd as high as possible
//! ```
//!
//! Structures that the kernel reads only while it boots lie in RAM that it may use afterwards. The memory map
//! reserves the rest: the MP table, at the end of usable low memory, the ACPI tables, and the two pages that
//! the host writes while the guest exists.

/// Global descriptor table.
pub const GDT: u64 = 0x500;
/// Stack of the 64-bit entry. It grows down to 0x1000, through memory without other structures.
pub const BOOT_STACK: u64 = 0x5ff0;
/// PVH: `hvm_start_info`.
pub const PVH_START_INFO: u64 = 0x6000;
/// PVH: the list of modules; the initrd is the only one.
pub const PVH_MODULES: u64 = 0x6040;
/// PVH: the memory map, up to [`ZERO_PAGE`].
pub const PVH_MEMORY_MAP: u64 = 0x7000;
/// Linux boot protocol: `boot_params`, 4096 bytes.
pub const ZERO_PAGE: u64 = 0x8000;
/// Page tables of the 64-bit entry: PML4, PDPT, then four page directories.
pub const PAGE_TABLES: u64 = 0x9000;
/// Kernel command line with its terminating NUL.
pub const COMMAND_LINE: u64 = 0x2_0000;
/// Bytes reserved at [`COMMAND_LINE`], the terminating NUL included.
pub const COMMAND_LINE_SIZE: u64 = 0x1_0000;
/// End of the boot structures in low memory; kernel segments may lie from here to [`LOW_RAM_END`].
pub const BOOT_STRUCTURES_END: u64 = COMMAND_LINE + COMMAND_LINE_SIZE;
/// End of RAM below 1 MiB in the memory map. A PC keeps its extended BIOS data from here on.
pub const LOW_RAM_END: u64 = 0x9_fc00;
/// MP table. A kernel searches the last KiB of base memory, among other places, for it (MP specification 1.4,
/// section 4).
pub const MP_TABLE: u64 = LOW_RAM_END;
/// RSDP, on a 16-byte boundary of the range that a guest scans for it (ACPI 6.5 section 5.2.5.1).
pub const RSDP: u64 = 0xe_0000;
/// The other ACPI tables, up to [`GENERATION_ID`].
pub const ACPI_TABLES: u64 = RSDP + 0x40;
/// The VM's generation id, in a page without other data.
pub const GENERATION_ID: u64 = 0xf_e000;
/// VMClock's page. It has no other data, because a guest's kernel maps it into programs.
pub const VM_CLOCK: u64 = 0xf_f000;
/// 1 MiB, from where kernels load.
pub const HIMEM: u64 = 0x10_0000;
/// End of RAM below 4 GiB; devices lie from here to [`MMIO_HOLE_END`].
pub const MMIO_HOLE_START: u64 = 0xc000_0000;
/// 4 GiB, where RAM continues.
pub const MMIO_HOLE_END: u64 = 1 << 32;
/// The IOAPIC's registers.
pub const IO_APIC: u64 = 0xfec0_0000;
/// The local APIC's registers.
pub const LOCAL_APIC: u64 = 0xfee0_0000;

/// Returns the RAM regions of a guest with `bytes` of memory, as (start, length).
///
/// Memory that does not fit below the MMIO hole continues at 4 GiB. No region is empty.
#[must_use]
pub fn ram_ranges(bytes: u64) -> Vec<(u64, u64)> {
    let below = bytes.min(MMIO_HOLE_START);
    [(0, below), (MMIO_HOLE_END, bytes - below)].into_iter().filter(|&(_, length)| length > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn ram_up_to_the_hole_is_one_region() {
        assert_eq!(ram_ranges(0), []);
        assert_eq!(ram_ranges(128 << 20), [(0, 128 << 20)]);
        assert_eq!(ram_ranges(3 * GIB - 4096), [(0, 3 * GIB - 4096)]);
        assert_eq!(ram_ranges(3 * GIB), [(0, 3 * GIB)]);
    }

    #[test]
    fn ram_beyond_the_hole_continues_at_4_gib() {
        assert_eq!(ram_ranges(3 * GIB + 4096), [(0, 3 * GIB), (4 * GIB, 4096)]);
        assert_eq!(ram_ranges(4 * GIB), [(0, 3 * GIB), (4 * GIB, GIB)]);
        assert_eq!(ram_ranges(1 << 40), [(0, 3 * GIB), (4 * GIB, (1 << 40) - 3 * GIB)]);
    }
}
