//! Builds the small guest: freestanding C with a PVH entry, which uses only the general registers.

use std::path::Path;
use std::process::Command;

const FLAGS: &str = "-O1 -Wall -Wextra -Werror -ffreestanding -fno-pic -fno-pie -mno-red-zone \
                     -mgeneral-regs-only -fno-stack-protector -fcf-protection=none -nostdlib -static -no-pie \
                     -Wl,-T,guest.ld -Wl,--build-id=none -Wl,-z,max-page-size=4096";

/// Sources of the guest: the entry first, then a file for each device's behaviours.
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
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let output = Path::new(&std::env::var("OUT_DIR").expect("cargo sets OUT_DIR")).join("guest.elf");
    let run = |more: &[&str]| {
        let mut command = Command::new(&compiler);
        command.args(FLAGS.split_whitespace()).args(more).arg("-o").arg(&output);
        command.args(SOURCES).current_dir("guests").status()
    };
    // Its only segment is readable, writable and executable. Older linkers neither warn nor know the option.
    let built = match run(&["-Wl,--no-warn-rwx-segments"]) {
        Ok(status) if !status.success() => run(&[]),
        tried => tried,
    };
    match built {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{compiler} cannot build the small guest: {status}"),
        Err(error) => {
            panic!("{compiler} cannot be run: {error} (scripts/install-deps.sh installs a C compiler)")
        }
    }
}
