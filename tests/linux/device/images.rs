//! Disk images.

use std::path::PathBuf;

use volt_tests::Scratch;
use volt_tests::host::run;

/// Makes an empty image of `mib` MiB.
pub(crate) fn blank(scratch: &Scratch, name: &str, mib: u64) -> PathBuf {
    let path = scratch.fresh(name);
    std::fs::File::create(&path).unwrap().set_len(mib << 20).unwrap();
    path
}

/// Makes an image of `mib` MiB with an ext4 file system.
pub(crate) fn ext4(scratch: &Scratch, name: &str, mib: u64) -> PathBuf {
    let path = blank(scratch, name, mib);
    run("mke2fs", &["-q", "-t", "ext4", path.to_str().unwrap()]);
    path
}
