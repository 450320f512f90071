//! Tests of truncated and damaged images: the load succeeds or names the file, does not panic, and writes
//! only where the image may lie.

use std::ops::Range;
use std::os::unix::fs::FileExt;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::testing::{TestElf, bzimage, guest, named, platform};
use crate::{EntryState, Error, NamedFile, Payload, layout, load};

fn load_file(memory: &GuestMemoryMmap, kernel: &NamedFile) -> Result<EntryState, Error> {
    load(memory, &Payload { kernel, initrd: None, cmdline: "" }, &platform())
}

/// Makes a guest with a mark at every place that is closed to images.
fn marked_guest() -> GuestMemoryMmap {
    let memory = guest(64 << 20);
    marks().for_each(|address| memory.write_obj(MARK, GuestAddress(address)).unwrap());
    memory
}

const MARK: u64 = 0x5aa5_1234_fedc_9876;

fn marks() -> impl Iterator<Item = u64> {
    [0, 0x1000, 0x3000, layout::BOOT_STRUCTURES_END - 8, layout::MP_TABLE + 0x400, layout::HIMEM - 8]
        .into_iter()
}

fn check(memory: &GuestMemoryMmap, what: &str, result: Result<EntryState, Error>) {
    if let Err(error) = result {
        assert!(error.to_string().starts_with("kernel /k: "), "{what}: {error}");
    }
    for address in marks() {
        assert_eq!(memory.read_obj::<u64>(GuestAddress(address)).unwrap(), MARK, "{what}: at {address:#x}");
    }
}

/// Returns each image's name, content and range of headers.
fn images() -> [(&'static str, Vec<u8>, Range<usize>); 4] {
    let elf_32 = TestElf { is_64: false, machine: 3, ..TestElf::pvh() };
    let header_64 = 0..64 + 2 * 56;
    [
        ("ELF", TestElf::kernel().build(), 0..64 + 56),
        ("PVH", TestElf::pvh().build(), header_64),
        ("32-bit PVH", elf_32.build(), 0..52 + 2 * 32),
        ("bzImage", bzimage(|_| ()), 0x1f1..0x26c),
    ]
}

#[test]
fn every_truncated_image_is_refused() {
    let memory = marked_guest();
    for (name, image, _) in images() {
        let kernel = named("/k", &image);
        assert!(load_file(&memory, &kernel).is_ok(), "{name} as a whole");
        for length in (0..image.len()).rev() {
            kernel.file.set_len(length as u64).unwrap();
            let what = format!("{name} of {length} bytes");
            let result = load_file(&memory, &kernel);
            assert!(result.is_err(), "{what} was loaded");
            check(&memory, &what, result);
        }
    }
}

#[test]
fn image_with_a_damaged_header_byte_stays_in_bounds() {
    let memory = marked_guest();
    for (name, image, header) in images() {
        let kernel = named("/k", &image);
        for offset in header {
            let original = image[offset];
            let damaged = (0..8).map(|bit| original ^ 1 << bit).chain([0, 0x7f, 0x80, 0xff]);
            for value in damaged {
                kernel.file.write_all_at(&[value], offset as u64).unwrap();
                check(&memory, &format!("{name}, byte {offset} = {value:#x}"), load_file(&memory, &kernel));
            }
            kernel.file.write_all_at(&[original], offset as u64).unwrap();
        }
    }
}

#[test]
fn image_with_random_header_fields_stays_in_bounds() {
    const EXTREMES: [u64; 8] = [0, 1, 0x1000, 0x10_0000, 0x3ff_ffff, u32::MAX as u64, 1 << 63, u64::MAX];
    let memory = marked_guest();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for (name, image, header) in images() {
        let kernel = named("/k", &image);
        for round in 0..4000 {
            let mut damaged = image[..header.end + 8].to_vec();
            for _ in 0..=random() % 3 {
                let offset = (header.start + random() as usize % header.len()).next_multiple_of(4);
                let width = if random() % 2 == 0 { 4 } else { 8 };
                let value = EXTREMES[random() as usize % EXTREMES.len()].to_le_bytes();
                damaged[offset..offset + width].copy_from_slice(&value[..width]);
            }
            kernel.file.write_all_at(&damaged, 0).unwrap();
            check(&memory, &format!("{name}, round {round}"), load_file(&memory, &kernel));
        }
    }
}
