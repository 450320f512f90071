//! Files that this tree builds for benchmarks: the program, the guest's kernel and init, and the memory of a
//! guest that has run.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{OrSay, Result};

/// The static release binary of this tree.
///
/// # Errors
/// It does not build.
pub fn volt_vmm() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--release", "--package", "volt-api"]).current_dir(env!("CARGO_MANIFEST_DIR"));
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
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(script);
    let run = Command::new(&script).stderr(std::process::Stdio::inherit()).output();
    let output = run.or_say(&format!("run {}", script.display()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().into()),
        false => Err(format!("{} failed", script.display())),
    }
}
