//! Builds the programs that a benchmark runs beside volt-vmm: the restored guest, the floor and an empty
//! program. The floor is a program of either C library, and an object that the benchmark links. All end up
//! inside the benchmark, which can then be copied as one file.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const GUEST: &str = "../tests/guests";
/// The small guest of the tests, beside its entry.
const SMALL_GUEST: [&str; 13] = [
    "guest.c",
    "random.c",
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
    "generation.c",
];
const PROGRAMS: &str = "programs";
const KERNEL_HEADERS: &str = "/usr/include/x86_64-linux-gnu";

fn main() {
    println!("cargo:rerun-if-changed={PROGRAMS}");
    println!("cargo:rerun-if-changed={GUEST}");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let guest = [
        "-ffreestanding",
        "-nostdlib",
        "-static",
        "-no-pie",
        "-fno-pie",
        "-mno-red-zone",
        "-mgeneral-regs-only",
        "-mno-sse",
        "-fno-stack-protector",
        "-fcf-protection=none",
        "-Wl,--build-id=none",
        "-Wl,-z,norelro",
        "-T",
        "../tests/guests/guest.ld",
        "../tests/guests/entry.S",
        "programs/chatter.c",
    ];
    let cc = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    compile(&cc, &guest, &out.join("chatter"));
    let entry = guest.len() - 1;
    let responder = [&guest[..entry], &["programs/responder.c"]].concat();
    compile(&cc, &responder, &out.join("responder"));
    let mut small = guest[..entry].to_vec();
    let sources = SMALL_GUEST.map(|name| format!("{GUEST}/{name}"));
    small.extend(sources.iter().map(String::as_str));
    compile(&cc, &small, &out.join("small-guest"));
    compile(&cc, &["-static", "programs/empty.c"], &out.join("empty"));
    compile(&cc, &["-static", "programs/calls.c"], &out.join("calls"));
    compile(&cc, &["-static", "programs/floor.c", "programs/floor_main.c"], &out.join("floor"));
    // The kernel's headers are found where glibc has its own, hence last.
    let musl =
        |arguments| [&["-idirafter", "/usr/include", "-idirafter", KERNEL_HEADERS][..], arguments].concat();
    let floor = musl(&["-static", "programs/floor.c", "programs/floor_main.c"]);
    compile("musl-gcc", &floor, &out.join("floor-musl"));
    compile("musl-gcc", &musl(&["-static", "programs/answerer.c"]), &out.join("answerer"));
    let object = out.join("floor.o");
    compile("musl-gcc", &musl(&["-c", "-fPIE", "programs/floor.c"]), &object);
    println!("cargo:rustc-link-arg-benches={}", object.display());
}

fn compile(compiler: &str, arguments: &[&str], output: &Path) {
    let mut compiler = Command::new(compiler);
    compiler.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"]).args(arguments).arg("-o").arg(output);
    let status = compiler.status().unwrap_or_else(|error| panic!("cannot run {compiler:?}: {error}"));
    assert!(status.success(), "{compiler:?} failed");
}
