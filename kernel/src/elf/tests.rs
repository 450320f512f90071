//! Tests of accepted and refused ELF kernels.

use crate::testing::{INTERPRETER, LOAD, NOTE, TestElf, bytes_at, guest, load_bytes, note, refusal};

fn entry(elf: &TestElf) -> u64 {
    load_bytes(&guest(64 << 20), &elf.build(), None, "").unwrap().rip
}

#[test]
fn segments_go_to_their_physical_addresses() {
    let memory = guest(64 << 20);
    let elf =
        TestElf::kernel().with(LOAD, 0x200_0000, vec![9; 4097], 5000).with(LOAD, 0x4_0000, vec![8; 3], 3);
    load_bytes(&memory, &elf.build(), None, "").unwrap();
    assert_eq!(bytes_at(&memory, 0x10_0000, 5000), elf.segments[0].bytes);
    assert_eq!(bytes_at(&memory, 0x10_0000 + 5000, 3000), [0; 3000]);
    assert_eq!(bytes_at(&memory, 0x200_0000, 4098), [vec![9; 4097], vec![0]].concat());
    assert_eq!(bytes_at(&memory, 0x4_0000, 4), [8, 8, 8, 0], "free low memory may be loaded to");
}

#[test]
fn kernel_with_a_pvh_note_is_entered_as_pvh() {
    assert_eq!(entry(&TestElf::kernel()), 0x10_0001);
    assert_eq!(entry(&TestElf::pvh()), 0x10_0002);
    let other_owner = TestElf::kernel().with(NOTE, 0, note(b"Yen\0", 18, &[2, 0, 16, 0]), 0);
    assert_eq!(entry(&other_owner), 0x10_0001);
    let second_segment = other_owner.with(NOTE, 0, note(b"Xen\0", 18, &[3, 0, 16, 0]), 0);
    assert_eq!(entry(&second_segment), 0x10_0003);
}

#[test]
fn file_of_32_bits_without_a_pvh_note_is_refused() {
    let elf = TestElf { is_64: false, machine: 3, ..TestElf::pvh() };
    assert_eq!(entry(&elf), 0x10_0002);
    let elf = TestElf { is_64: false, machine: 3, ..TestElf::kernel() };
    assert_eq!(refusal(&elf.build()), "kernel /k: is a 32-bit ELF file without a PVH entry point");
}

#[test]
fn file_of_another_machine_or_type_is_refused_by_name() {
    let with = |machine, kind| refusal(&TestElf { machine, kind, ..TestElf::kernel() }.build());
    assert_eq!(with(183, 2), "kernel /k: is an ELF file for aarch64; this machine is x86-64");
    assert_eq!(with(243, 2), "kernel /k: is an ELF file for RISC-V; this machine is x86-64");
    assert_eq!(with(62, 1), "kernel /k: is an ELF file of type 1, not an executable");
    let program = TestElf::kernel().with(INTERPRETER, 0, b"/lib/ld.so\0".to_vec(), 0);
    assert_eq!(refusal(&program.build()), "kernel /k: is a dynamically linked program, not a kernel");
    let empty = TestElf { segments: Vec::new(), ..TestElf::kernel() };
    assert_eq!(refusal(&empty.build()), "kernel /k: is an ELF file without program headers");
    let no_bytes = TestElf { segments: Vec::new(), ..TestElf::kernel() }.with(LOAD, 0x10_0000, vec![], 9);
    assert_eq!(refusal(&no_bytes.build()), "kernel /k: is an ELF file with nothing to load");
}

#[test]
fn segment_outside_free_guest_memory_is_refused() {
    let at = |address, size| refusal(&TestElf::kernel().with(LOAD, address, vec![1], size).build());
    let outside =
        |range| format!("kernel /k: its segment 1 ({range}) does not fit into 64 MiB of guest memory");
    assert_eq!(at(64 << 20, 1), outside("0x4000000 to 0x4000001"));
    assert_eq!(at((64 << 20) - 1, 2), outside("0x3ffffff to 0x4000001"));
    assert_eq!(at(u64::MAX, 2), outside("0xffffffffffffffff to 0xffffffffffffffff"));
    assert_eq!(at(0x20_0000, u64::MAX), outside("0x200000 to 0xffffffffffffffff"));
    let structures =
        |range| format!("kernel /k: its segment 1 ({range}) overlaps the boot structures below 1 MiB");
    assert_eq!(at(0x7000, 1), structures("0x7000 to 0x7001"));
    assert_eq!(at(0x9_0000, 0x8_0000), structures("0x90000 to 0x110000"));
    assert_eq!(at(0x10_1000, 1), "kernel /k: its segments at 0x100000 and 0x101000 overlap");
}

#[test]
fn segment_in_ram_above_4_gib_is_refused() {
    let elf = TestElf::kernel().with(LOAD, 1 << 32, vec![1], 1);
    let error = load_bytes(&guest(4 << 30), &elf.build(), None, "").unwrap_err();
    assert_eq!(error.to_string(), "kernel /k: its segment 1 lies above 4 GiB, at 0x100000000");
}

#[test]
fn entry_point_outside_all_segments_is_refused() {
    let elf = TestElf { entry: 0x5000, ..TestElf::kernel() };
    assert_eq!(refusal(&elf.build()), "kernel /k: its entry point 0x5000 lies in none of its segments");
    let elf = TestElf::kernel().with(NOTE, 0, note(b"Xen\0", 18, &[255; 4]), 0);
    assert_eq!(
        refusal(&elf.build()),
        "kernel /k: its PVH entry point 0xffffffff lies in none of its segments"
    );
    let elf = TestElf::kernel().with(NOTE, 0, note(b"Xen\0", 18, &[255; 8]), 0);
    assert_eq!(refusal(&elf.build()), "kernel /k: its PVH entry point is not a 32-bit address");
}

#[test]
fn incomplete_notes_are_refused() {
    let whole = note(b"Xen\0", 18, &[2, 0, 16, 0]);
    for length in 1..whole.len() {
        let elf = TestElf::kernel().with(NOTE, 0, whole[..length].to_vec(), 0);
        assert_eq!(refusal(&elf.build()), "kernel /k: its ELF note segment has an incomplete note");
    }
    let endless = [[255; 8].as_slice(), &[18, 0, 0, 0]].concat();
    let elf = TestElf::kernel().with(NOTE, 0, endless, 0);
    assert_eq!(refusal(&elf.build()), "kernel /k: its ELF note segment has an incomplete note");
}

#[test]
fn segment_larger_in_the_file_than_in_memory_is_refused() {
    let elf = TestElf::kernel().with(LOAD, 0x20_0000, vec![1; 2], 1);
    assert_eq!(refusal(&elf.build()), "kernel /k: its segment 1 is larger in the file than in memory");
}
