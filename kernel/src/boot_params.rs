//! The 64-bit Linux boot protocol (Documentation/x86/boot.rst and zero-page.rst): paging is on, and RSI
//! points to the zero page.

use std::ops::Range;

use linux_loader::loader::bootparam::{LOADED_HIGH, boot_e820_entry, boot_params};
use vm_memory::{ByteValued, GuestMemory};

use crate::bzimage::{SETUP_HEADER, SETUP_HEADER_END};
use crate::entry::EntryState;
use crate::error::Error;
use crate::guest::write_object;
use crate::image::LINUX_COMMAND_LINE_LIMIT;
use crate::layout::{BOOT_STACK, COMMAND_LINE, GDT, PAGE_TABLES, RSDP, ZERO_PAGE};
use crate::ram::MapEntry;
use crate::{gdt, paging};

/// `type_of_loader` of a loader without an assigned number.
const UNDEFINED_LOADER: u8 = 0xff;
const NORMAL_VIDEO_MODE: u16 = 0xffff;
const BOOT_FLAG: u16 = 0xaa55;
const MAGIC: u32 = u32::from_le_bytes(*b"HdrS");
/// Boot protocol version for an ELF kernel, which has no setup header.
const VERSION: u16 = 0x20f;

const CR0_PROTECTION_ENABLE: u64 = 1 << 0;
const CR0_MONITOR_COPROCESSOR: u64 = 1 << 1;
const CR0_EXTENSION_TYPE: u64 = 1 << 4;
const CR0_NUMERIC_ERROR: u64 = 1 << 5;
const CR0_WRITE_PROTECT: u64 = 1 << 16;
const CR0_PAGING: u64 = 1 << 31;
const CR4_PHYSICAL_ADDRESS_EXTENSION: u64 = 1 << 5;
const EFER_LONG_MODE_ENABLE: u64 = 1 << 8;
const EFER_LONG_MODE_ACTIVE: u64 = 1 << 10;

/// Writes the zero page, page tables and GDT, and returns the registers for the entry point `address`.
pub(crate) fn enter<M: GuestMemory>(
    memory: &M,
    address: u64,
    setup_header: Option<&[u8]>,
    map: &[MapEntry],
    initrd: Option<&Range<u64>>,
) -> Result<EntryState, Error> {
    write_object(memory, "zero page", ZERO_PAGE, &zero_page(setup_header, address, map, initrd))?;
    paging::place(memory)?;
    gdt::place(memory, true)?;
    Ok(EntryState {
        rip: address,
        rsp: BOOT_STACK,
        rsi: ZERO_PAGE,
        cr0: CR0_PROTECTION_ENABLE
            | CR0_MONITOR_COPROCESSOR
            | CR0_EXTENSION_TYPE
            | CR0_NUMERIC_ERROR
            | CR0_WRITE_PROTECT
            | CR0_PAGING,
        cr3: PAGE_TABLES,
        cr4: CR4_PHYSICAL_ADDRESS_EXTENSION,
        efer: EFER_LONG_MODE_ENABLE | EFER_LONG_MODE_ACTIVE,
        gdt_base: GDT,
        gdt_limit: gdt::LIMIT,
        code: gdt::code(true),
        data: gdt::data(),
        task: gdt::task(),
        ..EntryState::default()
    })
}

fn zero_page(
    setup_header: Option<&[u8]>,
    entry: u64,
    map: &[MapEntry],
    initrd: Option<&Range<u64>>,
) -> boot_params {
    let mut page = boot_params::default();
    match setup_header {
        Some(header) => {
            page.as_mut_slice()[SETUP_HEADER..SETUP_HEADER_END][..header.len()].copy_from_slice(header);
            page.hdr.code32_start = (entry - 0x200) as u32;
        }
        None => {
            page.hdr.boot_flag = BOOT_FLAG;
            page.hdr.header = MAGIC;
            page.hdr.version = VERSION;
            page.hdr.loadflags = LOADED_HIGH;
            page.hdr.kernel_alignment = 0x100_0000;
            page.hdr.cmdline_size = LINUX_COMMAND_LINE_LIMIT as u32;
        }
    }
    page.hdr.type_of_loader = UNDEFINED_LOADER;
    page.hdr.vid_mode = NORMAL_VIDEO_MODE;
    page.hdr.setup_data = 0;
    page.hdr.cmd_line_ptr = COMMAND_LINE as u32;
    let initrd = initrd.map_or((0, 0), |range| (range.start, range.end - range.start));
    (page.hdr.ramdisk_image, page.ext_ramdisk_image) = halves(initrd.0);
    (page.hdr.ramdisk_size, page.ext_ramdisk_size) = halves(initrd.1);
    page.acpi_rsdp_addr = RSDP;
    page.e820_entries = map.len() as u8;
    for (slot, entry) in map.iter().enumerate() {
        page.e820_table[slot] = boot_e820_entry { addr: entry.start, size: entry.length, r#type: entry.kind };
    }
    page
}

fn halves(value: u64) -> (u32, u32) {
    (value as u32, (value >> 32) as u32)
}
