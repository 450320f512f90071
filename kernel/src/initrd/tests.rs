//! Tests of the initrd's place beside a kernel that occupies 16 to 17 MiB and 32 to 33 MiB.

use std::ops::Range;

use super::*;
use crate::error::Role;
use crate::image::Entry;
use crate::testing::{file, guest};
use crate::{NamedFile, testing};

const MIB: u64 = 1 << 20;

/// Places an initrd of `length` bytes in a guest of `memory` bytes.
fn place_one(length: u64, memory: u64, edit: impl FnOnce(&mut Image)) -> Result<Range<u64>, String> {
    let mut image = Image {
        entry: Entry::Pvh { address: 16 * MIB },
        pieces: Vec::new(),
        occupied: Vec::from([16 * MIB..17 * MIB, 32 * MIB..33 * MIB]),
        command_line_limit: 0,
        initrd_limit: 3 << 30,
        initrd_above_4g: false,
    };
    edit(&mut image);
    let named = NamedFile { name: "/i".into(), file: file(&[]) };
    named.file.set_len(length).unwrap();
    let source = Source::new(Role::Initrd, &named).unwrap();
    place(&source, &Ram::of(&guest(memory)).unwrap(), &image).map_err(|error| error.to_string())
}

#[test]
fn initrd_goes_to_the_highest_address() {
    assert_eq!(place_one(5000, 64 * MIB, |_| ()), Ok(0x3ff_e000..0x3ff_f388));
    assert_eq!(place_one(4096, 5 << 30, |_| ()), Ok(0xbfff_f000..0xc000_0000), "below the hole");
}

#[test]
fn initrd_stays_below_the_kernels_limit() {
    assert_eq!(
        place_one(MIB, 5 << 30, |image| image.initrd_limit = 0x8000_0000),
        Ok(0x7ff0_0000..0x8000_0000)
    );
}

#[test]
fn initrd_does_not_overlap_the_kernel() {
    let gap = |length| place_one(length, 34 * MIB, |_| ()).unwrap();
    assert_eq!(gap(MIB), 33 * MIB..34 * MIB, "above it");
    assert_eq!(gap(MIB + 1).end, 17 * MIB + (14 * MIB - 4096) + MIB + 1, "between its parts");
    assert_eq!(gap(15 * MIB), 17 * MIB..32 * MIB, "filling the gap");
    assert_eq!(
        place_one(15 * MIB + 1, 34 * MIB, |_| ()),
        Err("initrd /i: 15728641 bytes do not fit beside the kernel below 0xc0000000 in 34 MiB guest memory"
            .into())
    );
}

#[test]
fn initrd_too_large_for_low_memory_goes_above_4_gib_if_the_kernel_accepts_it() {
    let big = 3 << 30;
    assert!(place_one(big, 8 << 30, |_| ()).is_err());
    assert_eq!(place_one(big, 8 << 30, |image| image.initrd_above_4g = true), Ok(6 << 30..9 << 30));
    assert_eq!(place_one(MIB, 8 << 30, |image| image.initrd_above_4g = true).unwrap().end, 3 << 30);
}

#[test]
fn initrd_larger_than_memory_is_refused() {
    assert_eq!(
        place_one(600 * MIB, 512 * MIB, |_| ()),
        Err("initrd /i: 600 MiB do not fit in 512 MiB guest memory".into())
    );
}

#[test]
fn empty_initrd_is_refused() {
    let kernel = testing::TestElf::kernel().build();
    let error = testing::load_bytes(&guest(64 * MIB), &kernel, Some(&[]), "").unwrap_err();
    assert_eq!(error.to_string(), "initrd /i: the file is empty");
}
