//! Disks, by their path or the id that the host gave them.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use volt_job::quiet::PLACEHOLDER;

/// How long the kernel may take to find a disk, and the host to give it its file.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a sector, in which the kernel gives sizes.
const SECTOR: u64 = 512;
const STEP: Duration = Duration::from_millis(2);
/// The longest serial number of a virtio disk (VIRTIO 1.3, 5.2.6.1). The host cuts longer ids.
const LONGEST_SERIAL: usize = 20;

/// Waits until the disk exists and has its file, and returns its path.
pub fn find(name: &str) -> Result<PathBuf, String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = if name.starts_with("/dev/") { Some(PathBuf::from(name)) } else { by_serial(name) };
        match found.filter(|path| path.exists()) {
            Some(path) if !is_placeholder(&path) => return Ok(path),
            _ if Instant::now() < deadline => sleep(STEP),
            Some(_) => return Err(format!("the disk {name} got no file from the host")),
            None if name.starts_with('/') => return Err(format!("there is no disk {name}")),
            None => return Err(format!("no disk has the id {name}; give the VM --disk id={name},path=…")),
        }
    }
}

/// Whether the host has still to give the disk its file.
fn is_placeholder(disk: &Path) -> bool {
    let name = disk.file_name().unwrap_or_default();
    let sectors = fs::read_to_string(Path::new("/sys/class/block").join(name).join("size"));
    sectors.is_ok_and(|sectors| sectors.trim_end().parse() == Ok(PLACEHOLDER / SECTOR))
}

fn by_serial(wanted: &str) -> Option<PathBuf> {
    let wanted = wanted.as_bytes().get(..LONGEST_SERIAL).unwrap_or(wanted.as_bytes());
    let disks = fs::read_dir("/sys/block").ok()?.flatten();
    let has_serial = |disk: &fs::DirEntry| {
        fs::read(disk.path().join("serial")).is_ok_and(|serial| serial.trim_ascii_end() == wanted)
    };
    disks.into_iter().find(has_serial).map(|disk| Path::new("/dev").join(disk.file_name()))
}
