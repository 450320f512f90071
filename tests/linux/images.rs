//! Disk images and loop devices: what disks are made from.

use std::path::{Path, PathBuf};
use std::process::Command;

use volt_tests::Scratch;

/// An empty image of so many MiB.
pub(crate) fn blank(scratch: &Scratch, name: &str, mib: u64) -> PathBuf {
    let path = scratch.fresh(name);
    std::fs::File::create(&path).unwrap().set_len(mib << 20).unwrap();
    path
}

/// One with an ext4 file system.
pub(crate) fn ext4(scratch: &Scratch, name: &str, mib: u64) -> PathBuf {
    let path = blank(scratch, name, mib);
    run("mke2fs", &["-q", "-t", "ext4", path.to_str().unwrap()]);
    path
}

/// A block device over a file. Dropped, it is no more.
pub(crate) struct LoopDevice(String);

impl LoopDevice {
    pub(crate) fn over(file: &Path) -> Self {
        let device = run("losetup", &["-f"]).trim().to_owned();
        run("losetup", &[&device, file.to_str().unwrap()]);
        Self(device)
    }

    pub(crate) fn path(&self) -> &str {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).output();
    }
}

/// What a program of the host prints.
fn run(program: &str, arguments: &[&str]) -> String {
    let done = Command::new(program).args(arguments).output();
    let done = done.unwrap_or_else(|error| panic!("cannot run {program}: {error}"));
    assert!(done.status.success(), "{program} {arguments:?}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}
