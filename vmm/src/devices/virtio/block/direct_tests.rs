//! Tests of transfers past the page cache, for which the kernel holds pages, while guest memory is frozen.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use vm_memory::{Bytes, GuestAddress};

use super::host_file::OpenMode;
use super::testing::{DONE, IN, OUT, TestDir, by_descriptor, disk_on, header, on_both_engines, pattern};
use super::*;
use crate::config::FileRef;
use crate::devices::virtio::testing::{Driver, NEXT, WRITE};
use crate::memory::dirty::freeze::freeze;
use crate::progress::Progress;

/// Bytes of a sector, at the start of each page under test.
const SECTOR_LEN: usize = 512;
const PAGE: u64 = 4096;
/// Guest address of the pages, in the first step of a freeze.
const PAGES: u64 = 0x14_0000;
/// Pages of one request, and requests in flight, which the driver's queue of 64 holds.
const PIECES: u64 = 14;
const REQUESTS: u64 = 4;
const COUNT: u64 = PIECES * REQUESTS;
/// Freezes to try, each a little later. If transfers hold pages, one of the first 40 loses a page.
const ROUNDS: u64 = 200;

fn open_direct(dir: &TestDir, content: &[u8]) -> Option<File> {
    let path = dir.file("image", content);
    File::open(&path).and_then(|file| file.sync_all()).unwrap();
    let direct = File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(path);
    let skip = |error| {
        crate::testing::skip(&format!("no direct I/O in {}: {error}", std::env::temp_dir().display()));
    };
    direct.map_err(skip).ok()
}

fn page(number: u64) -> GuestAddress {
    GuestAddress(PAGES + number * PAGE)
}

/// Describes a request for sectors at the starts of pages.
fn describe(driver: &Driver, kind: u32, request: u64) -> u16 {
    let first = (request * (PIECES + 2)) as u16;
    let (head, status) = (0x10_0000 + request * PAGE, 0x10_0800 + request * PAGE);
    let sector = request * PIECES;
    driver.ram.guest().write_slice(&header(kind, sector), GuestAddress(head)).unwrap();
    driver.ram.guest().write_obj(0xff_u8, GuestAddress(status)).unwrap();
    driver.describe(0, first, (head, 16), NEXT, first + 1);
    let flags = if kind == IN { WRITE | NEXT } else { NEXT };
    for piece in 0..PIECES as u16 {
        let at = page(request * PIECES + u64::from(piece)).0;
        driver.describe(0, first + 1 + piece, (at, SECTOR_LEN as u32), flags, first + 2 + piece);
    }
    driver.describe(0, first + 1 + PIECES as u16, (status, 1), WRITE, 0);
    first
}

fn status_of(driver: &Driver, request: u64) -> u8 {
    driver.ram.guest().read_obj(GuestAddress(0x10_0800 + request * PAGE)).unwrap()
}

/// Freezes while a device transfers the first parts of pages whose other parts a vCPU writes.
fn freeze_amid(kind: u32, engine: Engine, file: &File, delay: u64, content: &[u8]) {
    let config = DiskConfig {
        engine,
        path: FileRef::Fd(std::os::fd::AsRawFd::as_raw_fd(file)),
        ..by_descriptor(file)
    };
    let mut driver = Driver::new(Block::open(&config).unwrap());
    let heads: Vec<u16> = (0..REQUESTS).map(|request| describe(&driver, kind, request)).collect();
    if kind == OUT {
        for (number, sector) in content.chunks(SECTOR_LEN).enumerate() {
            driver.ram.guest().write_slice(sector, page(number as u64)).unwrap();
        }
    }
    let (ram, stop, last) = (driver.ram.clone(), AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1.. {
                for number in 0..COUNT {
                    let at = GuestAddress(page(number).0 + 1024);
                    ram.guest().write_obj::<u64>(round, at).unwrap();
                }
                last.store(round, Ordering::SeqCst);
                if stop.load(Ordering::SeqCst) {
                    break;
                }
            }
        });
        for head in heads {
            driver.offer(0, head);
        }
        for _ in 0..delay {
            std::hint::spin_loop();
        }
        freeze(&driver.ram, &Progress::default()).unwrap();
        for _ in 0..REQUESTS {
            driver.wait(0);
        }
        stop.store(true, Ordering::SeqCst);
    });
    let last = last.load(Ordering::SeqCst);
    for number in 0..COUNT {
        assert_eq!(status_of(&driver, number / PIECES), DONE);
        let mut sector = [0; SECTOR_LEN];
        driver.ram.guest().read_slice(&mut sector, page(number)).unwrap();
        let right = &content[number as usize * SECTOR_LEN..][..SECTOR_LEN];
        assert!(sector == right, "page {number} is not what was transferred (delay {delay})");
        let word: u64 = driver.ram.guest().read_obj(GuestAddress(page(number).0 + 1024)).unwrap();
        assert_eq!(word, last, "page {number} lost what the guest wrote");
    }
}

#[test]
fn read_past_the_page_cache_is_not_lost_to_a_freeze() {
    let dir = TestDir::new();
    let content = pattern(COUNT as usize * SECTOR_LEN, 7);
    let Some(file) = open_direct(&dir, &content) else { return };
    on_both_engines(|engine| {
        for round in 0..ROUNDS {
            freeze_amid(IN, engine, &file, round % 40 * 500, &content);
        }
    });
}

/// Writes use guest memory directly before a freeze, too.
#[test]
fn write_past_the_page_cache_is_whole_after_a_freeze() {
    let dir = TestDir::new();
    let Some(file) = open_direct(&dir, &pattern(COUNT as usize * SECTOR_LEN, 7)) else { return };
    on_both_engines(|engine| {
        for round in 0..40 {
            let content = pattern(COUNT as usize * SECTOR_LEN, 100 + round);
            freeze_amid(OUT, engine, &file, round * 500, &content);
            assert!(std::fs::read(dir.path("image")).unwrap() == content, "round {round}");
        }
    });
}

#[test]
fn only_reads_go_through_memory_of_the_vmm() {
    let dir = TestDir::new();
    let Some(file) = open_direct(&dir, &[1; 4096]) else { return };
    let reference = FileRef::Fd(std::os::fd::AsRawFd::as_raw_fd(&file));
    let file = HostFile::open("disk0", &reference, OpenMode::Write).unwrap();
    assert!(file.needs_bounce(host_file::Direction::Read) && !file.needs_bounce(host_file::Direction::Write));
    file.allow_direct();
    assert!(!file.needs_bounce(host_file::Direction::Read));
}

#[test]
fn file_past_the_page_cache_reads_and_writes_before_and_after_a_freeze() {
    let dir = TestDir::new();
    let content = pattern(COUNT as usize * SECTOR_LEN, 9);
    let Some(file) = open_direct(&dir, &content) else { return };
    on_both_engines(|engine| {
        let config = disk_on(engine, FileRef::Fd(std::os::fd::AsRawFd::as_raw_fd(&file)));
        let mut driver = Driver::new(Block::open(&config).unwrap());
        for round in 0..2_u8 {
            for kind in [OUT, IN] {
                for number in 0..COUNT {
                    let fill =
                        if kind == OUT { [number as u8 ^ round; SECTOR_LEN] } else { [0xee; SECTOR_LEN] };
                    driver.ram.guest().write_slice(&fill, page(number)).unwrap();
                }
                for request in 0..REQUESTS {
                    let head = describe(&driver, kind, request);
                    driver.offer(0, head);
                    driver.wait(0);
                    assert_eq!(status_of(&driver, request), DONE);
                }
            }
            for number in 0..COUNT {
                let mut sector = [0; SECTOR_LEN];
                driver.ram.guest().read_slice(&mut sector, page(number)).unwrap();
                assert_eq!(sector, [number as u8 ^ round; SECTOR_LEN], "page {number}, round {round}");
            }
            freeze(&driver.ram, &Progress::default()).unwrap();
        }
    });
}

/// A snapshot and a restore read samples of an image that the guest uses past the page cache.
#[test]
fn file_past_the_page_cache_has_the_digest_that_it_has_in_it() {
    let dir = TestDir::new();
    for len in [512, 4096, 4097, 12 << 10, 20_000, (1 << 20) + 512, (1 << 20) + 4095] {
        let content = pattern(len, 11);
        let Some(direct) = open_direct(&dir, &content) else { return };
        let cached = File::open(dir.path("image")).unwrap();
        let [direct, cached] = [direct, cached].map(|file| digest::of_base(&file, len as u64).unwrap());
        assert_eq!(direct, cached, "{len} bytes");
    }
}
