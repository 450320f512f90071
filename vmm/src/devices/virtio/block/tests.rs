//! Tests of disks under a driver, over real files.

use std::fs::{self, File};
use std::os::fd::AsRawFd;

use super::host_file::{HostFile, OpenMode};
use super::testing::*;
use super::*;
use crate::config::FileRef;
use crate::devices::virtio::feature;
use crate::devices::virtio::testing::{Driver, Part};
use crate::error::report;

// ---- Requests ----

#[test]
fn written_data_is_read_back_however_requests_are_split() {
    on_both_engines(|engine| {
        let dir = TestDir::new();
        let path = dir.file("image", &[0; 64 << 10]);
        let mut driver = start(&disk_on(engine, &path));
        let data = pattern(4096, 1);
        let out = [&header(OUT, 7)[..], &data].concat();
        // The header in three parts, the last one with data; data in odd pieces; the status at the end of
        // unused bytes.
        let parts = [&out[..5], &out[5..15], &out[15..600], &out[600..601], &out[601..]].map(Part::Out);
        let used = driver.ask(0, &[&parts[..], &[Part::In(3)]].concat());
        assert_eq!((status(&used), used.len), (DONE, 0), "two bytes before the status were not written");
        assert_eq!(fs::read(&path).unwrap()[7 * 512..][..4096], data);

        let parts = [Part::In(1), Part::In(700), Part::In(3395), Part::In(1)];
        let used = driver.ask(0, &[&[Part::Out(&header(IN, 7))], &parts[..]].concat());
        assert_eq!((status(&used), used.len), (DONE, 4097));
        assert_eq!(used.written[..4096], data);
        // The status in one piece with the data.
        let used = driver.ask(0, &[Part::Out(&header(IN, 7)), Part::In(512), Part::In(3585)]);
        assert_eq!((status(&used), &used.written[..4096]), (DONE, &data[..]));
        assert_eq!(read(&mut driver, 7, 4096).unwrap(), data);
    });
}

#[test]
fn configuration_describes_the_disk() {
    let dir = TestDir::new();
    let path = dir.file("image", &[0; 10 * 512 + 100]);
    let mut driver = start(&disk(&path));
    assert_eq!(driver.get(0x08), 2);
    assert_eq!((config(&mut driver, 0), config(&mut driver, 4)), (10, 0));
    assert_eq!((config(&mut driver, 12), config(&mut driver, 20)), (254, 512));
    assert!(config(&mut driver, 36) > 0 && config(&mut driver, 40) > 0 && config(&mut driver, 44) == 1);
    assert!(config(&mut driver, 48) > 0 && config(&mut driver, 52) > 0 && config(&mut driver, 56) == 1);
    let used = driver.ask(0, &[Part::Out(&header(GET_ID, 0)), Part::In(20), Part::In(1)]);
    assert_eq!((&used.written[..], used.len), (&b"disk0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"[..], 21));
    let used = driver.ask(0, &[Part::Out(&header(GET_ID, 0)), Part::In(3), Part::In(1)]);
    assert_eq!((&used.written[..], used.len), (&b"dis\0"[..], 4));
    let long = DiskConfig { id: "a-name-of-more-than-20-letters".into(), read_only: true, ..disk(&path) };
    drop(driver);
    let mut driver = start(&long);
    let used = driver.ask(0, &[Part::Out(&header(GET_ID, 0)), Part::In(40), Part::In(1)]);
    assert_eq!((&used.written[..20], used.len, status(&used)), (&b"a-name-of-more-than-"[..], 20, DONE));
}

#[test]
fn request_outside_the_disk_fails() {
    on_both_engines(|engine| {
        let dir = TestDir::new();
        let content = pattern(16 * 512 + 511, 2);
        let path = dir.file("image", &content);
        let mut driver = start(&disk_on(engine, &path));
        assert_eq!(read(&mut driver, 15, 512).unwrap(), content[15 * 512..][..512]);
        for (sector, len) in [
            (16, 512),
            (15, 1024),
            (0, 17 * 512),
            (u64::MAX, 512),
            (u64::MAX - 1, 1024),
            (1 << 55, 512),
            ((1 << 55) - 1, 512),
            (0, 511),
            (0, 513),
            (17, 0),
        ] {
            assert_eq!(read(&mut driver, sector, len.max(1)).unwrap_err(), FAILED, "{sector} {len}");
            assert_eq!(write(&mut driver, sector, &vec![7; len.max(1)]), FAILED, "{sector} {len}");
        }
        for kind in [DISCARD, WRITE_ZEROES] {
            for segments in [
                &[(16, 1, 0)][..],
                &[(u64::MAX, 1, 0)],
                &[(1 << 55, 8, 0)],
                &[(0, u32::MAX, 0)],
                &[(0, 1, 0); 17],
                &[(0, 1, 0), (16, 1, 0)],
            ] {
                assert_eq!(stretches(&mut driver, kind, segments), FAILED, "{segments:?}");
            }
            let used = driver.ask(0, &[Part::Out(&header(kind, 0)), Part::Out(&[0; 15]), Part::In(1)]);
            assert_eq!(status(&used), FAILED);
            assert_eq!(status(&driver.ask(0, &[Part::Out(&header(kind, 0)), Part::In(1)])), FAILED);
            assert_eq!(stretches(&mut driver, kind, &[(0, 1, 2)]), UNSUPPORTED, "an unknown flag");
        }
        assert_eq!(stretches(&mut driver, DISCARD, &[(0, 1, 1)]), UNSUPPORTED, "unmap is not a discard's");
        for kind in [2, 3, 5, 14, 0x8000_0000, u32::MAX] {
            let used = driver.ask(0, &[Part::Out(&header(kind, 0)), Part::In(1)]);
            assert_eq!((status(&used), used.len), (UNSUPPORTED, 1), "{kind}");
        }
        assert_eq!(status(&driver.ask(0, &[Part::Out(&[0; 15]), Part::In(513)])), FAILED, "half a header");
        assert_eq!(status(&driver.ask(0, &[Part::In(513)])), FAILED, "no header");
        assert_eq!(fs::read(&path).unwrap(), content);
        driver.send(0, &[Part::Out(&header(FLUSH, 0))]);
        driver.wait_broken();
    });
}

#[test]
fn read_only_disk_refuses_writes() {
    on_both_engines(|engine| {
        let dir = TestDir::new();
        let content = pattern(8192, 3);
        let path = dir.file("image", &content);
        let config = DiskConfig { read_only: true, ..disk_on(engine, &path) };
        let device = Block::open(&config).unwrap();
        assert_eq!(device.features() & (1 << 5 | 1 << 13 | 1 << 14), 1 << 5);
        let mut driver = Driver::new(device);
        assert_eq!(read(&mut driver, 0, 8192).unwrap(), content);
        assert_eq!(write(&mut driver, 0, &[0; 512]), FAILED);
        assert_eq!(discard(&mut driver, 0, 1), FAILED);
        assert_eq!(write_zeroes(&mut driver, 0, 1, false), FAILED);
        assert_eq!(flush(&mut driver), DONE);
        assert_eq!(fs::read(&path).unwrap(), content);
    });
}

#[test]
fn discarded_and_zeroed_ranges_read_as_zeros() {
    on_both_engines(|engine| {
        let dir = TestDir::new();
        let content = pattern(1 << 20, 4);
        let path = dir.file("image", &content);
        let mut driver = start(&disk_on(engine, &path));
        assert_eq!(stretches(&mut driver, DISCARD, &[(8, 16, 0), (100, 0, 0), (200, 3, 0)]), DONE);
        assert_eq!(write_zeroes(&mut driver, 301, 700, false), DONE);
        assert_eq!(write_zeroes(&mut driver, 1100, 9, true), DONE);
        assert_eq!(flush(&mut driver), DONE);
        let mut expected = content;
        for (sector, sectors) in [(8, 16), (200, 3), (301, 700), (1100, 9)] {
            expected[sector * 512..][..sectors * 512].fill(0);
        }
        assert_eq!(read(&mut driver, 0, 1 << 20).unwrap(), expected);
        assert_eq!(fs::read(&path).unwrap(), expected);
    });
}

#[test]
fn writes_succeed_without_flush_and_with_an_unsafe_cache() {
    on_both_engines(|engine| {
        let dir = TestDir::new();
        let path = dir.file("image", &[0; 4096]);
        let mut driver =
            Driver::with_features(Block::open(&disk_on(engine, &path)).unwrap(), feature::TRANSPORT);
        assert_eq!(write(&mut driver, 1, &[5; 512]), DONE);
        assert_eq!(flush(&mut driver), DONE);
        drop(driver);
        let mut driver = start(&DiskConfig { cache: Cache::Unsafe, ..disk_on(engine, &path) });
        assert_eq!(read(&mut driver, 1, 512).unwrap(), [5; 512]);
        assert_eq!((write(&mut driver, 1, &[6; 512]), flush(&mut driver)), (DONE, DONE));
    });
}

// ---- Hosts ----

#[test]
fn dropped_disk_can_be_opened_again_while_a_child_inherits_its_descriptor() {
    let dir = TestDir::new();
    let path = dir.file("image", &[0; 4096]);
    let open = || HostFile::open("disk0", &path.clone().into(), OpenMode::Write);
    let file = open().unwrap();
    // A child shares the open file like this between fork and exec.
    let inherited = file.file().try_clone().unwrap();
    let duplicate = file.duplicate().unwrap();
    drop(file);
    let refused = open().unwrap_err().to_string();
    assert!(refused.contains("is being used by another VM"), "a duplicate holds the lock: {refused}");
    assert!(refused.contains(&format!("(process {}: ", std::process::id())), "{refused}");
    drop(duplicate);
    open().unwrap();
    drop(inherited);
}

/// The kernel ends the io_uring of a killed VM after its process.
#[test]
fn disk_whose_user_ends_a_moment_later_is_opened() {
    let dir = TestDir::new();
    let path = dir.file("image", &[0; 4096]);
    let open = || HostFile::open("disk0", &path.clone().into(), OpenMode::Write);
    let file = open().unwrap();
    std::thread::scope(|scope| {
        let second = scope.spawn(open);
        std::thread::sleep(std::time::Duration::from_millis(20));
        drop(file);
        second.join().unwrap().unwrap();
    });
}

#[test]
fn disk_that_is_dropped_leaves_the_lock_of_a_callers_descriptor() {
    let dir = TestDir::new();
    let path = dir.file("base", &[0; 4096]);
    let given = File::open(&path).unwrap();
    let shared = || HostFile::open("disk0", &FileRef::Fd(given.as_raw_fd()), OpenMode::Read).unwrap();
    let (one, other) = (shared(), shared());
    drop(one);
    let refused = HostFile::open("disk0", &path.clone().into(), OpenMode::Write).unwrap_err().to_string();
    assert!(refused.contains("is being used by another VM"), "{refused}");
    drop(other);
}

#[test]
fn file_that_shrank_fails_requests_and_never_reads_as_zeros() {
    on_both_engines(|engine| {
        let dir = TestDir::new();
        let content = pattern(64 << 10, 5);
        let path = dir.file("image", &content);
        let mut driver = start(&disk_on(engine, &path));
        File::options().write(true).open(&path).unwrap().set_len(10_000).unwrap();
        assert_eq!(read(&mut driver, 0, 9728).unwrap(), content[..9728]);
        assert_eq!(read(&mut driver, 18, 2048).unwrap_err(), FAILED, "across the end");
        assert_eq!(read(&mut driver, 64, 512).unwrap_err(), FAILED, "beyond it");
        assert_eq!(write(&mut driver, 64, &[1; 512]), FAILED);
        assert_eq!(write_zeroes(&mut driver, 64, 1, false), FAILED);
        assert_eq!(fs::metadata(&path).unwrap().len(), 10_000);
        assert_eq!(write(&mut driver, 1, &[1; 512]), DONE);
    });
}

#[test]
fn file_that_grew_is_a_larger_disk_after_resize() {
    let dir = TestDir::new();
    let path = dir.file("image", &[0; 4096]);
    let mut block = Block::open(&disk(&path)).unwrap();
    assert!(!block.resize().unwrap());
    File::options().write(true).open(&path).unwrap().set_len(8192).unwrap();
    assert_eq!(block.config()[0], 8);
    assert!(block.resize().unwrap());
    assert_eq!(block.config()[0], 16);
    File::options().write(true).open(&path).unwrap().set_len(511).unwrap();
    let error = block.resize().unwrap_err().to_string();
    assert!(error.contains("disk0") && error.contains("511"), "{error}");
}

#[test]
fn file_that_cannot_be_a_disk_is_refused_by_name() {
    let dir = TestDir::new();
    for (path, why) in [
        (dir.path("nothing"), "No such file"),
        (dir.file("empty", &[]), "0 bytes"),
        (dir.file("short", &[0; 511]), "511 bytes"),
        ("/dev/null".into(), "neither a regular file nor a block device"),
        (dir.path(""), "directory"),
    ] {
        let error = refusal(&disk(&path));
        assert!(error.contains(why) && error.contains(path.to_str().unwrap()), "{error}");
    }
    let error = refusal(&DiskConfig { read_only: true, ..disk(dir.path("")) });
    assert!(error.contains("neither a regular file"), "{error}");
}

#[test]
fn writer_excludes_other_users() {
    let dir = TestDir::new();
    let path = dir.file("image", &[0; 4096]);
    let (writable, read_only) = (disk(&path), DiskConfig { read_only: true, ..disk(&path) });
    let writer = Block::open(&writable).unwrap();
    for second in [&writable, &read_only] {
        let error = refusal(second);
        assert!(error.contains("disk0") && error.contains(path.to_str().unwrap()), "{error}");
    }
    drop(writer);
    let _readers = [(); 2].map(|()| Block::open(&read_only).unwrap());
    assert!(refusal(&writable).contains("is being used by another"));
}

#[test]
fn full_host_fails_the_write_and_keeps_the_data() {
    on_both_engines(|engine| {
        let Some(small) = SmallTmpfs::mount() else {
            return crate::testing::skip("mounting a tmpfs takes root");
        };
        let path = small.0.path("image");
        File::create(&path).unwrap().set_len(4 << 20).unwrap();
        let mut driver = start(&disk_on(engine, &path));
        let data = pattern(512 << 10, 6);
        assert_eq!(write(&mut driver, 0, &data), DONE);
        assert_eq!(write(&mut driver, 4096, &vec![1; 1 << 20]), FAILED);
        assert_eq!(read(&mut driver, 0, data.len()).unwrap(), data);
        assert_eq!(discard(&mut driver, 4096, 2048), DONE);
        assert_eq!(write(&mut driver, 4096, &data[..4096]), DONE, "there is room again");
        // tmpfs can punch holes but not zero ranges.
        assert_eq!(write_zeroes(&mut driver, 0, 3, false), DONE);
        assert_eq!(read(&mut driver, 0, 2048).unwrap(), [&[0; 1536], &data[1536..2048]].concat());
    });
}

#[test]
fn block_device_serves_as_a_disk() {
    on_both_engines(|engine| {
        let dir = TestDir::new();
        let mut content = pattern(1 << 20, 8);
        let Some(device) = LoopDevice::over(&dir.file("image", &content)) else {
            return crate::testing::skip("a loop device takes root");
        };
        let mut driver = start(&disk_on(engine, &device.0));
        assert!(refusal(&disk_on(engine, &device.0)).contains("is being used by another"));
        assert_eq!(config(&mut driver, 0), 2048);
        assert_eq!(read(&mut driver, 2, 9000 / 512 * 512).unwrap(), content[1024..][..9000 / 512 * 512]);
        assert_eq!(read(&mut driver, 2048, 512).unwrap_err(), FAILED);
        assert_eq!(write(&mut driver, 5, &[5; 512]), DONE);
        assert_eq!(discard(&mut driver, 8, 8), DONE);
        assert_eq!(write_zeroes(&mut driver, 31, 3, false), DONE);
        assert_eq!(write_zeroes(&mut driver, 64, 16, true), DONE);
        assert_eq!(flush(&mut driver), DONE);
        content[5 * 512..6 * 512].fill(5);
        for (sector, sectors) in [(8, 8), (31, 3), (64, 16)] {
            content[sector * 512..][..sectors * 512].fill(0);
        }
        assert_eq!(read(&mut driver, 0, 1 << 20).unwrap(), content);
    });
}

/// The kernel reports a failed writeback to one sync of an open file: if that is the snapshot's, the guest
/// would not learn of it.
#[test]
fn flush_fails_after_a_snapshots_sync_has_failed() {
    on_both_engines(|engine| {
        let Some(small) = SmallTmpfs::mount() else {
            return crate::testing::skip("mounting a tmpfs takes root");
        };
        let path = small.0.path("image");
        File::create(&path).unwrap().set_len(4 << 20).unwrap();
        let Some(device) = LoopDevice::over(&path) else {
            return crate::testing::skip("a loop device takes root");
        };
        let disk = Block::open(&disk_on(engine, &device.0)).unwrap();
        let files = disk.files().unwrap();
        let mut driver = Driver::new(disk);
        assert_eq!(write(&mut driver, 0, &vec![1; 512 << 10]), DONE);
        assert_eq!(flush(&mut driver), DONE);
        assert_eq!(write(&mut driver, 2048, &vec![1; 2 << 20]), DONE, "to the page cache");
        let error = report(&files.sync().unwrap_err());
        assert!(error.contains("cannot sync disk"), "{error}");
        assert_eq!(flush(&mut driver), FAILED);
        assert_eq!(flush(&mut driver), FAILED, "the second flush cannot bring lost data back");
    });
}

#[test]
fn snapshots_sync_fails_after_a_flush_has_failed() {
    on_both_engines(|engine| {
        let Some(small) = SmallTmpfs::mount() else {
            return crate::testing::skip("mounting a tmpfs takes root");
        };
        let path = small.0.path("image");
        File::create(&path).unwrap().set_len(4 << 20).unwrap();
        let Some(device) = LoopDevice::over(&path) else {
            return crate::testing::skip("a loop device takes root");
        };
        let disk = Block::open(&disk_on(engine, &device.0)).unwrap();
        let files = disk.files().unwrap();
        let mut driver = Driver::new(disk);
        assert_eq!(write(&mut driver, 0, &vec![1; 2 << 20]), DONE, "to the page cache");
        assert_eq!(flush(&mut driver), FAILED);
        let error = report(&files.sync().unwrap_err());
        assert!(error.contains("an earlier sync failed"), "{error}");
    });
}

// ---- Snapshots ----

#[test]
fn disk_resumes_in_another_process() {
    let dir = TestDir::new();
    let file = open_both_ways(&dir.file("image", &pattern(8192, 7)));
    let mut driver = start(&by_descriptor(&file));
    assert_eq!(write(&mut driver, 3, &[3; 1024]), DONE);
    file.set_len(16384).unwrap();
    driver.move_to(Block::open(&by_descriptor(&file)).unwrap());
    assert_eq!(read(&mut driver, 3, 1024).unwrap(), [3; 1024]);
    assert_eq!(config(&mut driver, 0), 16, "the capacity that the guest knows");
    assert_eq!(read(&mut driver, 16, 512).unwrap_err(), FAILED);
}

#[test]
fn restore_on_a_smaller_or_read_only_disk_is_refused() {
    let dir = TestDir::new();
    let file = open_both_ways(&dir.file("image", &[0; 8192]));
    let state = Block::open(&by_descriptor(&file)).unwrap().save().unwrap();
    file.set_len(4096).unwrap();
    let error = Block::open(&by_descriptor(&file)).unwrap().restore(&state).unwrap_err().to_string();
    assert!(error.contains("8 sectors") && error.contains("expects 16"), "{error}");
    file.set_len(8192).unwrap();
    let read_only = DiskConfig { read_only: true, ..by_descriptor(&file) };
    let error = Block::open(&read_only).unwrap().restore(&state).unwrap_err().to_string();
    assert!(error.contains("must be writable"), "{error}");
}
