//! Compiles the tables of allowed system calls into seccomp filters, one for each kind of thread.

#[path = "build/rules.rs"]
mod rules;
#[path = "build/tree.rs"]
mod tree;

use std::error::Error;
use std::fmt::Write;
use std::path::Path;

use rules::{EVERY, KICK, KINDS, OWN_PROCESS};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    let mut text = format!(
        "pub(super) const OWN_PROCESS: u32 = {OWN_PROCESS:#x};\npub(super) const KICK: u32 = {KICK:#x};\n"
    );
    for (kind, tables) in KINDS {
        let rules = EVERY.iter().chain(tables.iter().copied().flatten());
        let program = tree::compile(rules).map_err(|error| format!("filter of {kind}: {error}"))?;
        writeln!(text, "pub(super) static {}: [u64; {}] = {program:?};", kind.to_uppercase(), program.len())?;
    }
    let directory = std::env::var("OUT_DIR")?;
    std::fs::write(Path::new(&directory).join("filters.rs"), text)?;
    Ok(())
}
