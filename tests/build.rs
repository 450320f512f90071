//! Builds programs of freestanding C, which use only the general registers: the small guest with its PVH
//! entry, and a program of Linux guests.

use std::path::Path;
use std::process::Command;

const FLAGS: &str = "-O1 -Wall -Wextra -Werror -ffreestanding -fno-pic -fno-pie -mno-red-zone \
                     -mgeneral-regs-only -fno-stack-protector -fcf-protection=none -nostdlib -static -no-pie \
                     -Wl,--build-id=none -Wl,-z,max-page-size=4096";

/// Sources of the small guest: the entry first, then a file for each device's behaviours.
const SOURCES: [&str; 14] = [
    "entry.S",
    "guest.c",
    "random.c",
    "generation.c",
    "disk.c",
    "records.c",
    "net.c",
    "metadata.c",
    "balloon.c",
    "vsock.c",
    "ioapic.c",
    "time.c",
    "cpu.c",
    "pair.c",
];

fn main() {
    println!("cargo::rerun-if-changed=guests");
    println!("cargo::rerun-if-env-changed=CC");
    // The small guest's only segment is readable, writable and executable. Older linkers neither warn nor
    // know the option.
    let script = "-Wl,-T,guest.ld";
    let small = |more: &[&str]| compile("guest.elf", &[&[script], more, &SOURCES[..]].concat());
    if !small(&["-Wl,--no-warn-rwx-segments"]) {
        assert!(small(&[]), "the small guest cannot be built");
    }
    assert!(compile("draws.elf", &["draws.c"]), "draws.c cannot be built");
}

/// Compiles one program. Returns whether the compiler succeeded.
fn compile(name: &str, words: &[&str]) -> bool {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let output = Path::new(&std::env::var("OUT_DIR").expect("cargo sets OUT_DIR")).join(name);
    let mut command = Command::new(&compiler);
    command.args(FLAGS.split_whitespace()).arg("-o").arg(&output).args(words).current_dir("guests");
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            panic!("{compiler} cannot be run: {error} (scripts/install-deps.sh installs a C compiler)")
        }
    }
}
