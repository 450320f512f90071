//! Fuzzes ELF kernels. A kernel that loads has its segments in memory and its entry point in one of them;
//! another is refused by its name. Neither changes memory that is closed to images.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use volt_fuzz::files::Damage;
use volt_fuzz::kernels::{Loaded, Segment, elf, load};

#[derive(Debug, Arbitrary)]
struct Input {
    is_32: bool,
    kind: Option<u16>,
    machine: Option<u16>,
    entry: u64,
    odd_entry: bool,
    segments: Vec<Segment>,
    damage: Vec<Damage>,
}

fuzz_target!(|input: Input| {
    let Input { is_32, kind, machine, entry, odd_entry, segments, damage } = input;
    let entry = if odd_entry { entry } else { 0x10_0000 + entry % 0x1_0000 };
    let mut file =
        elf(!is_32, [kind.unwrap_or(2), machine.unwrap_or(if is_32 { 3 } else { 62 })], entry, &segments);
    damage.iter().for_each(|damage| damage.apply(&mut file));
    let Some(Loaded { state, memory }) = load(&file, None, "") else { return };
    assert!(state.rip < 16 << 20, "entry {:#x} lies beyond memory", state.rip);
    if damage.is_empty() {
        for segment in segments.iter().filter(|segment| segment.is_loaded()) {
            let bytes = segment.bytes();
            let at = if is_32 { u64::from(segment.address() as u32) } else { segment.address() };
            // An empty one may have any address.
            let is_there = bytes.is_empty() || memory.read(at, bytes.len()) == bytes;
            assert!(is_there, "another segment");
        }
    }
});
