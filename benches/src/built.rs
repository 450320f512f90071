//! Files that this tree builds for benchmarks: the program, the guest's kernel and init, and the memory of a
//! guest that has run.

use std::path::PathBuf;
use std::process::Command;

use crate::{OrSay, Result};

/// The source tree: cargo names it, or the current directory is in it. Known only at run time: two trees may
/// share a target directory, and the program in it is the one that either of them built.
///
/// # Errors
/// The current directory is in no source tree.
pub fn source_tree() -> Result<PathBuf> {
    if let Some(manifest_dir) = std::env::var_os("CARGO_MANIFEST_DIR") {
        return Ok(PathBuf::from(manifest_dir).join(".."));
    }
    let here = std::env::current_dir().or_say("find the current directory")?;
    let tree = here.ancestors().find(|directory| directory.join("benches/Cargo.toml").exists());
    tree.map(PathBuf::from).ok_or_else(|| "run this benchmark by cargo, or in the source tree".to_owned())
}

/// The static release binary of this tree.
///
/// # Errors
/// It does not build.
pub fn volt_vmm() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--locked", "--release", "--package", "volt-api"]).current_dir(source_tree()?);
    let status = build.status().or_say("run cargo")?;
    if !status.success() {
        return Err("volt-vmm does not build".to_owned());
    }
    // This program is in `deps`, beside which cargo puts binaries.
    let this = std::env::current_exe().or_say("find this program")?;
    let release = this.parent().and_then(|deps| deps.parent()).ok_or("this program is nowhere")?;
    Ok(release.join("volt-vmm"))
}

/// The guest's kernel.
///
/// # Errors
/// It does not build.
pub fn kernel() -> Result<PathBuf> {
    path_from("kernel/build.sh")
}

/// The initramfs with the guest's init.
///
/// # Errors
/// It does not build.
pub fn initrd() -> Result<PathBuf> {
    path_from("kernel/guest/build.sh")
}

/// The snapshot of a Linux guest that has run Python and a build.
///
/// # Errors
/// It cannot be made.
pub fn memory_image() -> Result<PathBuf> {
    path_from("scripts/memory-image.sh")
}

/// Returns the path that a script of this tree prints when it has built something.
fn path_from(script: &str) -> Result<PathBuf> {
    let script = source_tree()?.join(script);
    let run = Command::new(&script).stderr(std::process::Stdio::inherit()).output();
    let output = run.or_say(&format!("run {}", script.display()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().into()),
        false => Err(format!("{} failed", script.display())),
    }
}
