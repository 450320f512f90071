//! File systems on a disk whose writes are logged.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{UnmountFlags, unmount};

use super::image::Image;
use super::log;
use super::mounted::{mount_ext4, unmount_from};
use super::recording::Recording;
use crate::host::{LoopDevice, run};
use crate::scratch::Scratch;

/// MiB for the log of one recording.
const LOG_MIB: u64 = 1024;

/// A journaled ext4 on dm-log-writes. The device is removed on drop.
#[derive(Debug)]
pub struct CrashDisk {
    scratch: Scratch,
    mapped: Mapped,
    mounted: bool,
    image: Image,
    /// The disk, and its log.
    _devices: [LoopDevice; 2],
}

/// A device of the device mapper.
#[derive(Debug)]
struct Mapped(String);

impl CrashDisk {
    /// Makes an empty file system of `mib` MiB in memory.
    ///
    /// # Panics
    /// The host refuses: the test must begin with `needs!(log_writes)`.
    #[must_use]
    pub fn new(mib: u64) -> Self {
        let scratch = Scratch::within(Path::new("/dev/shm"));
        let (disk, log) = (scratch.path("disk"), scratch.path("log"));
        for (path, mib) in [(&disk, mib), (&log, LOG_MIB)] {
            fs::File::create(path).and_then(|file| file.set_len(mib << 20)).expect("make a file in memory");
        }
        // Lazy initialisation would write to the log during the test.
        let lazy = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        run("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096", "-J", "size=4", "-E", lazy, text(&disk)]);
        let image = Image::read(&disk).expect("read a new file system");
        let devices = [&disk, &log].map(|path| LoopDevice::over(path));
        let name = scratch.directory().file_name().expect("a name").to_string_lossy().into_owned();
        let table = format!("0 {} log-writes {} {}", (mib << 20) / 512, devices[0].path(), devices[1].path());
        dmsetup(&["create", &name, "--noudevsync", "--noudevrules", "--table", &table]);
        let mapped = Mapped(name);
        let place = scratch.path("mounted");
        fs::create_dir(&place).expect("make a directory");
        mount_ext4(&mapped.device(), &place);
        Self { scratch, mapped, mounted: true, image, _devices: devices }
    }

    /// Returns the mount point.
    #[must_use]
    pub fn place(&self) -> PathBuf {
        self.scratch.path("mounted")
    }

    /// Marks the log. Writes that are on the medium by now come before the mark.
    pub fn mark(&self, text: &str) {
        dmsetup(&["message", &self.mapped.0, "0", "mark", text]);
    }

    /// Syncs the file system.
    pub fn sync(&self) {
        let place = fs::File::open(self.place()).expect("open a directory");
        rustix::fs::syncfs(place).expect("sync a file system");
    }

    /// Ends the recording. No process may have a file on the disk open.
    ///
    /// # Panics
    /// The host refuses.
    #[must_use]
    pub fn finish(mut self) -> Recording {
        self.unmount();
        self.mapped.remove();
        let log = self.scratch.path("log");
        let entries = log::read(&log).expect("read the log");
        Recording::new(self.image.clone(), entries, log, self.scratch.clone())
    }

    fn unmount(&mut self) {
        if std::mem::take(&mut self.mounted) {
            unmount_from(&self.place());
        }
    }
}

impl Drop for CrashDisk {
    fn drop(&mut self) {
        if self.mounted {
            // Only a failed test still has a file open.
            let _ = unmount(self.place(), UnmountFlags::DETACH);
        }
    }
}

impl Mapped {
    fn device(&self) -> PathBuf {
        let number = dmsetup(&["info", "-c", "--noheadings", "-o", "minor", &self.0]);
        PathBuf::from(format!("/dev/dm-{}", number.trim()))
    }

    fn remove(&self) {
        dmsetup(&["remove", "--noudevsync", "--noudevrules", "--retry", &self.0]);
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let _ = Command::new("dmsetup").args(["remove", "--noudevsync", "--force", &self.0]).output();
    }
}

fn dmsetup(arguments: &[&str]) -> String {
    run("dmsetup", arguments)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of ours")
}
