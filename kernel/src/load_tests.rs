//! Tests of guest memory and registers at the kernel's start.

use linux_loader::loader::bootparam::boot_params;
use linux_loader::loader::elf::start_info::{hvm_memmap_table_entry, hvm_modlist_entry, hvm_start_info};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::testing::{TestElf, bytes_at, bzimage, file, guest, load_bytes, named, platform};
use crate::{NamedFile, Payload, layout, load};

fn object<T: vm_memory::ByteValued>(memory: &GuestMemoryMmap, address: u64) -> T {
    memory.read_obj(GuestAddress(address)).unwrap()
}

#[test]
fn pvh_kernel_finds_its_start_info() {
    let memory = guest(4 << 30);
    let state = load_bytes(&memory, &TestElf::pvh().build(), Some(b"initrd!"), "console=ttyS0").unwrap();
    let info: hvm_start_info = object(&memory, state.rbx);
    assert_eq!((info.magic, info.version, info.flags), (0x336e_c578, 1, 0));
    assert_eq!(bytes_at(&memory, info.cmdline_paddr, 14), b"console=ttyS0\0");
    assert_eq!(bytes_at(&memory, info.rsdp_paddr, 8), b"RSD PTR ");
    assert_eq!(bytes_at(&memory, 0x9_fc00, 4), b"_MP_");
    assert_eq!((info.nr_modules, info.memmap_entries), (1, 4));
    let module: hvm_modlist_entry = object(&memory, info.modlist_paddr);
    assert_eq!(bytes_at(&memory, module.paddr, module.size as usize), b"initrd!");
    let map: Vec<_> = (0..4)
        .map(|n| object::<hvm_memmap_table_entry>(&memory, info.memmap_paddr + n * 24))
        .map(|entry| (entry.addr, entry.size, entry.type_))
        .collect();
    assert_eq!(map[..2], [(0, 0x9_fc00, 1), (0x9_fc00, 0x6_0400, 2)]);
    assert_eq!(map[2..], [(0x10_0000, (3 << 30) - 0x10_0000, 1), (4 << 30, 1 << 30, 1)]);
}

#[test]
fn pvh_kernel_starts_in_flat_32_bit_mode() {
    let memory = guest(64 << 20);
    let state = load_bytes(&memory, &TestElf::pvh().build(), None, "").unwrap();
    assert_eq!((state.rip, state.cr0, state.cr3, state.cr4, state.efer), (0x10_0002, 0x11, 0, 0, 0));
    assert_eq!(
        (state.code.base, state.code.limit, state.code.big, state.code.long),
        (0, u32::MAX, true, false)
    );
    assert_eq!((state.task.base, state.task.limit, state.task.kind), (0, 0x67, 0xb));
    let info: hvm_start_info = object(&memory, state.rbx);
    assert_eq!((info.nr_modules, info.modlist_paddr), (0, 0));
}

#[test]
fn linux_kernel_finds_its_zero_page() {
    let memory = guest(64 << 20);
    let state = load_bytes(&memory, &bzimage(|_| ()), Some(&[7; 5000]), "quiet").unwrap();
    assert_eq!(state.rsi, layout::ZERO_PAGE);
    let page: boot_params = object(&memory, state.rsi);
    let header = page.hdr;
    assert_eq!(
        (header.type_of_loader, { header.version }, { header.code32_start }),
        (0xff, 0x20f, 0x100_0000)
    );
    assert_eq!({ header.setup_data }, 0, "not what the file said");
    assert_eq!({ header.init_size }, 0x10_0000, "what the file said");
    assert_eq!(bytes_at(&memory, header.cmd_line_ptr.into(), 6), b"quiet\0");
    assert_eq!(bytes_at(&memory, header.ramdisk_image.into(), header.ramdisk_size as usize), [7; 5000]);
    assert_eq!(bytes_at(&memory, page.acpi_rsdp_addr, 8), b"RSD PTR ");
    let [low, bios, high] = [0, 1, 2].map(|n| page.e820_table[n]);
    assert_eq!((page.e820_entries, page.sentinel), (3, 0));
    assert_eq!([low.r#type, bios.r#type, high.r#type], [1, 2, 1]);
    assert_eq!(({ high.addr }, { high.size }), (0x10_0000, (64 << 20) - 0x10_0000));
}

#[test]
fn linux_kernel_starts_in_64_bit_mode_with_boot_descriptors() {
    let memory = guest(64 << 20);
    let state = load_bytes(&memory, &TestElf::kernel().build(), None, "").unwrap();
    assert_eq!((state.rip, state.cr3, state.cr4, state.efer), (0x10_0001, layout::PAGE_TABLES, 0x20, 0x500));
    assert_eq!(state.cr0, 0x8001_0033);
    assert_eq!((state.code.selector, state.code.long, state.code.big), (0x10, true, false));
    assert_eq!((state.data.selector, state.task.selector, state.gdt_limit), (0x18, 0x20, 47));
    assert_eq!(object::<u64>(&memory, state.gdt_base + 0x10), 0x00af_9b00_0000_ffff);
    let page: boot_params = object(&memory, state.rsi);
    assert_eq!(({ page.hdr.header }, { page.hdr.boot_flag }), (u32::from_le_bytes(*b"HdrS"), 0xaa55));
}

#[test]
fn initrd_above_4_gib_has_a_64_bit_address_in_the_zero_page() {
    let memory = guest(16 << 30);
    let kernel = named("/k", &TestElf::kernel().build());
    let initrd = NamedFile { name: "/i".into(), file: file(b"start") };
    initrd.file.set_len(5000).unwrap();
    let image = bzimage(|header| header.initrd_addr_max = 0); // no place below 4 GiB
    let kernel = NamedFile { file: file(&image), ..kernel };
    let payload = Payload { kernel: &kernel, initrd: Some(&initrd), cmdline: "" };
    let state = load(&memory, &payload, &platform()).unwrap();
    let page: boot_params = object(&memory, state.rsi);
    let address = u64::from(page.ext_ramdisk_image) << 32 | u64::from(page.hdr.ramdisk_image);
    assert_eq!((address, { page.ext_ramdisk_size }), ((17 << 30) - 8192, 0));
    assert_eq!(bytes_at(&memory, address, 5), b"start");
}

#[test]
fn load_neither_uses_nor_changes_the_file_offset() {
    use std::io::{Read, Seek, SeekFrom};
    let kernel = named("/k", &TestElf::pvh().build());
    (&kernel.file).seek(SeekFrom::Start(3)).unwrap();
    let payload = Payload { kernel: &kernel, initrd: None, cmdline: "" };
    load(&guest(64 << 20), &payload, &platform()).unwrap();
    let mut next = [0];
    (&kernel.file).read_exact(&mut next).unwrap();
    assert_eq!(next, *b"F");
}

#[test]
fn refused_payload_leaves_guest_memory_unchanged() {
    let memory = guest(16 << 20);
    load_bytes(&memory, &TestElf::kernel().build(), Some(&[1; 17 << 20]), "").unwrap_err();
    load_bytes(&memory, &TestElf::kernel().build(), None, "\0").unwrap_err();
    assert!(bytes_at(&memory, 0, 16 << 20).iter().all(|byte| *byte == 0));
}

#[test]
fn file_that_is_no_kernel_is_refused_by_name() {
    let refusal = |kernel: &NamedFile| {
        let payload = Payload { kernel, initrd: None, cmdline: "" };
        load(&guest(16 << 20), &payload, &platform()).unwrap_err().to_string()
    };
    let open = |name: &str| NamedFile { name: name.into(), file: std::fs::File::open(name).unwrap() };
    assert_eq!(refusal(&open("/")), "kernel /: is a directory, not a regular file");
    assert_eq!(refusal(&open("/dev/null")), "kernel /dev/null: is a device, not a regular file");
    assert_eq!(refusal(&named("/e", b"")), "kernel /e: the file is empty");
    assert_eq!(refusal(&named("/t", b"#!/bin/sh\n")), "kernel /t: not an ELF or bzImage file");
}
