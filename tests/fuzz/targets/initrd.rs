//! Fuzzes the place of an initrd and the command line. An initrd that loads lies in memory as it is in its
//! file, apart from the kernel.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use volt_fuzz::kernels::{Loaded, MEMORY, Segment, bzimage, elf, load};

#[derive(Debug, Arbitrary)]
struct Input {
    kernel: Option<Segment>,
    /// `initrd_addr_max` and `init_size` of a bzImage.
    limit: u32,
    size: u32,
    length: u32,
    /// Long initrds take long to write and to compare.
    is_long: u8,
    cmdline: String,
}

fuzz_target!(|input: Input| {
    let Input { kernel, limit, size, length, is_long, cmdline } = input;
    let file = match &kernel {
        Some(segment) => elf(true, [2, 62], segment.address(), std::slice::from_ref(segment)),
        None => {
            let mut file = bzimage(4096);
            file[0x22c..0x230].copy_from_slice(&limit.to_le_bytes());
            file[0x260..0x264].copy_from_slice(&(size % (32 << 20)).to_le_bytes());
            file
        }
    };
    let most = if is_long == 1 { 2 * MEMORY } else { 1 << 16 };
    let content: Vec<u8> = (0..length as usize % most).map(|at| (at % 251) as u8 | 1).collect();
    let Some(Loaded { state, memory }) = load(&file, Some(&content), &cmdline) else { return };
    assert_eq!(memory.read(0x2_0000, cmdline.len() + 1), [cmdline.as_bytes(), b"\0"].concat());
    // The zero page names the initrd; PVH is not chosen here.
    let word = |at: u64| {
        let bytes = memory.read(state.rsi + at, 4);
        u64::from(u32::from_le_bytes(bytes.try_into().expect("4 bytes")))
    };
    let (start, found) = (word(0x218), word(0x21c));
    assert_eq!(found, content.len() as u64);
    assert!(memory.read(start, content.len()) == content, "another initrd");
    assert!(start.is_multiple_of(4096) && start >= 0x10_0000);
    if kernel.is_none() {
        assert!(start + found <= u64::from(limit) + 1, "beyond the kernel's limit");
    }
});
