//! Passes `order.ld` to the linker, which puts the functions that a restore executes side by side, and has it
//! pack relocations.

use std::env;
use std::path::Path;

const ORDER: &str = "order.ld";

fn main() {
    println!("cargo::rerun-if-changed={ORDER}");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    // A debug build has other functions and is not measured. Only the musl target has the mangling of the
    // list's names (.cargo/config.toml).
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_ENV", "musl") {
        let order = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join(ORDER);
        // The linker adds the list to its own script, because the list only inserts a section.
        for argument in ["-Xlinker", "-T", "-Xlinker", &order.display().to_string()] {
            println!("cargo::rustc-link-arg-bin=volt-vmm={argument}");
        }
        // The start-up code reads every relocation. Packed, all 7,000 are in one page rather than in 44. It
        // understands packed ones from musl 1.2.4 on, and the pinned toolchain has a later one. A linker that
        // does not know the keyword (binutils before 2.38) warns and goes on.
        println!("cargo::rustc-link-arg-bin=volt-vmm=-Wl,-z,pack-relative-relocs");
    }
}
