//! Fixtures for tests of disks: files, disks over them, and requests.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::Block;
use crate::config::FileRef;
use crate::config::devices::{Cache, DiskConfig, Engine, RateLimit};
use crate::devices::virtio::testing::{Driver, Part, Used};
use crate::error::report;
use crate::testing::ScratchDir;

pub(super) const IN: u32 = 0;
pub(super) const OUT: u32 = 1;
pub(super) const FLUSH: u32 = 4;
pub(super) const GET_ID: u32 = 8;
pub(super) const DISCARD: u32 = 11;
pub(super) const WRITE_ZEROES: u32 = 13;

pub(super) const DONE: u8 = 0;
pub(super) const FAILED: u8 = 1;
pub(super) const UNSUPPORTED: u8 = 2;

// ---- Files and disks ----

/// A directory for a test's disks, removed on drop.
#[derive(Debug)]
pub(super) struct TestDir(ScratchDir);

impl TestDir {
    pub(super) fn new() -> Self {
        Self(ScratchDir::new())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.0.join(name)
    }

    /// Makes a file with this content.
    pub(super) fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        fs::write(self.path(name), content).unwrap();
        self.path(name)
    }
}

/// A block device over a file, detached on drop.
#[derive(Debug)]
pub(super) struct LoopDevice(pub PathBuf);

impl LoopDevice {
    pub(super) fn over(path: &Path) -> Option<Self> {
        let made = std::process::Command::new("losetup").args(["--find", "--show"]).arg(path).output();
        let made = made.ok().filter(|made| made.status.success())?;
        Some(Self(String::from_utf8(made.stdout).unwrap().trim().into()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// A tmpfs of 1 MiB, unmounted on drop.
#[derive(Debug)]
pub(super) struct SmallTmpfs(pub TestDir);

impl SmallTmpfs {
    pub(super) fn mount() -> Option<Self> {
        let dir = TestDir::new();
        let mut mount = std::process::Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(dir.path("")).output();
        mounted.is_ok_and(|mounted| mounted.status.success()).then(|| Self(dir))
    }
}

impl Drop for SmallTmpfs {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(self.0.path("")).status();
    }
}

/// An ext4 of 8 MiB that keeps times in seconds, unmounted on drop.
#[derive(Debug)]
pub(super) struct Ext4InSeconds(pub TestDir);

impl Ext4InSeconds {
    pub(super) fn mount() -> Option<Self> {
        let (dir, below) = (TestDir::new(), TestDir::new());
        let image = below.file("image", b"");
        File::options().write(true).open(&image).unwrap().set_len(8 << 20).unwrap();
        let run = |program: &str, args: &[&std::ffi::OsStr]| {
            let done = std::process::Command::new(program).args(args).output();
            done.is_ok_and(|done| done.status.success()).then_some(())
        };
        run("mkfs.ext4", &["-q".as_ref(), "-I".as_ref(), "128".as_ref(), image.as_ref()])?;
        let at = dir.path("");
        run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_ref(), at.as_ref()])?;
        Some(Self(dir)) // the loop device keeps the image
    }
}

impl Drop for Ext4InSeconds {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(self.0.path("")).status();
    }
}

/// Returns pseudo-random bytes.
pub(super) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..len.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).take(len).collect()
}

/// xorshift64*
pub(super) struct Random(pub u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

pub(super) fn disk(path: impl Into<FileRef>) -> DiskConfig {
    DiskConfig {
        id: "disk0".into(),
        path: path.into(),
        parts: Vec::new(),
        read_only: false,
        cache: Cache::default(),
        engine: Engine::default(),
        beneath: None,
        layer: None,
        layer_size: None,
        limit: RateLimit::default(),
    }
}

pub(super) fn disk_on(engine: Engine, path: impl Into<FileRef>) -> DiskConfig {
    DiskConfig { engine, ..disk(path) }
}

/// Runs a test with both engines.
pub(super) fn on_both_engines(test: impl Fn(Engine)) {
    test(Engine::Sync);
    match io_uring::IoUring::new(1) {
        Ok(_) => test(Engine::IoUring),
        Err(error) => {
            crate::testing::skip(&format!("no io_uring here ({error}), only engine=sync was tried"))
        }
    }
}

pub(super) fn start(config: &DiskConfig) -> Driver {
    Driver::new(Block::open(config).unwrap())
}

pub(super) fn refusal(config: &DiskConfig) -> String {
    report(&Block::open(config).unwrap_err())
}

// ---- Requests ----

pub(super) fn header(kind: u32, sector: u64) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat()
}

pub(super) fn segment(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}

pub(super) fn status(used: &Used) -> u8 {
    *used.written.last().unwrap()
}

pub(super) fn read(driver: &mut Driver, sector: u64, len: usize) -> Result<Vec<u8>, u8> {
    let mut used = driver.ask(0, &[Part::Out(&header(IN, sector)), Part::In(len), Part::In(1)]);
    let status = used.written.pop().unwrap();
    if status == DONE {
        assert_eq!(used.len as usize, len + 1);
        Ok(used.written)
    } else {
        assert_eq!(used.len, 0);
        Err(status)
    }
}

pub(super) fn write(driver: &mut Driver, sector: u64, data: &[u8]) -> u8 {
    let used = driver.ask(0, &[Part::Out(&header(OUT, sector)), Part::Out(data), Part::In(1)]);
    assert_eq!(used.len, 1);
    status(&used)
}

pub(super) fn flush(driver: &mut Driver) -> u8 {
    status(&driver.ask(0, &[Part::Out(&header(FLUSH, 0)), Part::In(1)]))
}

pub(super) fn stretches(driver: &mut Driver, kind: u32, segments: &[(u64, u32, u32)]) -> u8 {
    let segments: Vec<u8> = segments.iter().flat_map(|&(at, len, flags)| segment(at, len, flags)).collect();
    status(&driver.ask(0, &[Part::Out(&header(kind, 0)), Part::Out(&segments), Part::In(1)]))
}

pub(super) fn discard(driver: &mut Driver, sector: u64, sectors: u32) -> u8 {
    stretches(driver, DISCARD, &[(sector, sectors, 0)])
}

pub(super) fn write_zeroes(driver: &mut Driver, sector: u64, sectors: u32, unmap: bool) -> u8 {
    stretches(driver, WRITE_ZEROES, &[(sector, sectors, unmap.into())])
}

pub(super) fn config(driver: &mut Driver, at: u64) -> u32 {
    driver.get(0x100 + at)
}

// ---- By descriptor ----

pub(super) fn by_descriptor(file: &File) -> DiskConfig {
    disk(FileRef::Fd(file.as_raw_fd()))
}

pub(super) fn open_both_ways(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}
