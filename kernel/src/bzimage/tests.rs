//! Tests of accepted and refused bzImages.

use crate::testing::{bytes_at, bzimage, guest, load_bytes, refusal};

#[test]
fn relocatable_kernel_goes_to_its_preferred_address() {
    let memory = guest(64 << 20);
    let image = bzimage(|_| ());
    let state = load_bytes(&memory, &image, None, "").unwrap();
    assert_eq!(state.rip, 0x100_0200);
    assert_eq!(bytes_at(&memory, 0x100_0000, 2048), image[1024..]);
}

#[test]
fn kernel_that_is_not_relocatable_goes_to_1_mib() {
    let memory = guest(64 << 20);
    let image = bzimage(|header| header.relocatable_kernel = 0);
    assert_eq!(load_bytes(&memory, &image, None, "").unwrap().rip, 0x10_0200);
    assert_eq!(bytes_at(&memory, 0x10_0000, 2048), image[1024..]);
}

#[test]
fn image_without_a_64_bit_entry_is_refused() {
    assert_eq!(
        refusal(&bzimage(|header| header.version = 0x205)),
        "kernel /k: is a bzImage of boot protocol 2.05; the 64-bit entry takes 2.12 or newer"
    );
    assert_eq!(
        refusal(&bzimage(|header| header.xloadflags = 0)),
        "kernel /k: is a 32-bit bzImage, without a 64-bit entry point"
    );
    assert_eq!(
        refusal(&bzimage(|header| header.loadflags = 0)),
        "kernel /k: is a zImage, which loads below 1 MiB, not a bzImage"
    );
    assert_eq!(
        refusal(&bzimage(|header| header.boot_flag = 0)),
        "kernel /k: its bzImage boot flag is 0x0, not 0xaa55"
    );
}

#[test]
fn kernel_that_does_not_fit_is_refused() {
    assert_eq!(
        refusal(&bzimage(|header| header.init_size = 0x400_0000)),
        "kernel /k: its protected-mode kernel (0x1000000 to 0x5000000) does not fit into 64 MiB \
         of guest memory"
    );
    assert_eq!(
        refusal(&bzimage(|header| header.pref_address = !0x1f_ffff)),
        "kernel /k: its protected-mode kernel (0xffffffffffe00000 to 0xfffffffffff00000) does not fit \
         into 64 MiB of guest memory"
    );
    assert_eq!(
        refusal(&bzimage(|header| header.pref_address = 0)),
        "kernel /k: its protected-mode kernel (0x0 to 0x100000) overlaps the boot structures below 1 MiB"
    );
    assert_eq!(
        refusal(&bzimage(|header| header.pref_address = 0x100_1000)),
        "kernel /k: its preferred address 0x1001000 is not aligned to its kernel alignment 0x200000"
    );
}

#[test]
fn kernel_without_its_last_byte_is_refused_as_truncated() {
    let image = bzimage(|_| ());
    assert_eq!(
        refusal(&image[..image.len() - 1]),
        "kernel /k: truncated: its protected-mode kernel ends at byte 3072, but the file has 3071 bytes"
    );
    assert_eq!(
        refusal(&image[..0x210]),
        "kernel /k: truncated: its bzImage setup header ends at byte 620, but the file has 528 bytes"
    );
}

#[test]
fn command_line_beyond_the_setup_headers_limit_is_refused() {
    let image = bzimage(|header| header.cmdline_size = 10);
    let memory = guest(64 << 20);
    assert!(load_bytes(&memory, &image, None, "0123456789").is_ok());
    assert_eq!(
        load_bytes(&memory, &image, None, "0123456789a").unwrap_err().to_string(),
        "kernel command line is 11 bytes long; the kernel takes at most 10"
    );
    let image = bzimage(|header| header.cmdline_size = u32::MAX);
    assert!(load_bytes(&memory, &image, None, &"x".repeat(65535)).is_ok());
    assert!(load_bytes(&memory, &image, None, &"x".repeat(65536)).is_err());
}
