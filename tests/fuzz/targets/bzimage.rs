//! Fuzzes bzImage kernels. A kernel that loads has its protected-mode part in memory and enters it; another
//! is refused by its name. Neither changes memory that is closed to images.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use volt_fuzz::files::Damage;
use volt_fuzz::kernels::{Loaded, bzimage, load};

/// Offsets and lengths of fields of the setup header.
const FIELDS: [(usize, usize); 13] = [
    (0x1f1, 1),
    (0x1f4, 4),
    (0x1fe, 2),
    (0x200, 2),
    (0x206, 2),
    (0x211, 1),
    (0x22c, 4),
    (0x230, 4),
    (0x234, 1),
    (0x236, 2),
    (0x238, 4),
    (0x258, 8),
    (0x260, 4),
];

#[derive(Debug, Arbitrary)]
struct Input {
    len: u16,
    fields: Vec<(u8, u64)>,
    damage: Vec<Damage>,
    cmdline: String,
}

fuzz_target!(|input: Input| {
    let mut file = bzimage(usize::from(input.len) % 8192);
    for (field, value) in &input.fields {
        let (at, len) = FIELDS[usize::from(*field) % FIELDS.len()];
        file.iter_mut().skip(at).take(len).zip(value.to_le_bytes()).for_each(|(byte, new)| *byte = new);
    }
    input.damage.iter().for_each(|damage| damage.apply(&mut file));
    let Some(Loaded { state, memory }) = load(&file, None, &input.cmdline) else { return };
    // The file may have become an ELF file only by chance.
    if file.starts_with(b"\x7fELF") {
        return;
    }
    let sectors = if file[0x1f1] == 0 { 4 } else { usize::from(file[0x1f1]) };
    let code = &file[(sectors + 1) * 512..];
    assert!(memory.read(state.rip - 0x200, code.len()) == code, "another kernel");
});
