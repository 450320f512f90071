//! The PVH boot protocol (Xen docs/misc/pvh.pandoc and include/public/arch-x86/hvm/start_info.h): 32-bit
//! protected mode, and EBX points to `hvm_start_info` version 1.

use std::ops::Range;

use linux_loader::loader::elf::start_info::{
    XEN_HVM_START_MAGIC_VALUE, hvm_memmap_table_entry, hvm_modlist_entry, hvm_start_info,
};
use vm_memory::GuestMemory;

use crate::entry::EntryState;
use crate::error::Error;
use crate::gdt;
use crate::guest::write_object;
use crate::layout::{COMMAND_LINE, GDT, PVH_MEMORY_MAP, PVH_MODULES, PVH_START_INFO, RSDP, ZERO_PAGE};
use crate::ram::MapEntry;

const CR0_PROTECTION_ENABLE: u64 = 1 << 0;
const CR0_EXTENSION_TYPE: u64 = 1 << 4;

const _: () = assert!(PVH_START_INFO + size_of::<hvm_start_info>() as u64 <= PVH_MODULES);
const _: () = assert!(PVH_MEMORY_MAP + 128 * size_of::<hvm_memmap_table_entry>() as u64 <= ZERO_PAGE);

/// Writes the start info and the GDT, and returns the registers for the entry point `address`.
pub(crate) fn enter<M: GuestMemory>(
    memory: &M,
    address: u64,
    map: &[MapEntry],
    initrd: Option<&Range<u64>>,
) -> Result<EntryState, Error> {
    if let Some(initrd) = initrd {
        let module = hvm_modlist_entry {
            paddr: initrd.start,
            size: initrd.end - initrd.start,
            ..hvm_modlist_entry::default()
        };
        write_object(memory, "PVH module list", PVH_MODULES, &module)?;
    }
    for (index, entry) in map.iter().enumerate() {
        let entry =
            hvm_memmap_table_entry { addr: entry.start, size: entry.length, type_: entry.kind, reserved: 0 };
        let address = PVH_MEMORY_MAP + (index * size_of_val(&entry)) as u64;
        write_object(memory, "PVH memory map", address, &entry)?;
    }
    let start_info = hvm_start_info {
        magic: XEN_HVM_START_MAGIC_VALUE,
        version: 1,
        flags: 0,
        nr_modules: initrd.is_some().into(),
        modlist_paddr: if initrd.is_some() { PVH_MODULES } else { 0 },
        cmdline_paddr: COMMAND_LINE,
        rsdp_paddr: RSDP,
        memmap_paddr: PVH_MEMORY_MAP,
        memmap_entries: map.len() as u32,
        reserved: 0,
    };
    write_object(memory, "PVH start info", PVH_START_INFO, &start_info)?;
    gdt::place(memory, false)?;
    Ok(EntryState {
        rip: address,
        rbx: PVH_START_INFO,
        cr0: CR0_PROTECTION_ENABLE | CR0_EXTENSION_TYPE,
        gdt_base: GDT,
        gdt_limit: gdt::LIMIT,
        code: gdt::code(false),
        data: gdt::data(),
        task: gdt::task(),
        ..EntryState::default()
    })
}
