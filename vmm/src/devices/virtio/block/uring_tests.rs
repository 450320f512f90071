//! Tests of the engine with many requests in flight. The device's tests compare single requests between
//! engines.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use super::super::Block;
use super::super::host_file::{HostFile, OpenMode};
use super::super::storage::{FileOffset, PendingFlush};
use super::super::testing::{
    DONE, FAILED, IN, OUT, TestDir, by_descriptor, disk_on, flush, header, open_both_ways, pattern, read,
    status, write,
};
use super::{Operation, UringRequest};
use crate::config::FileRef;
use crate::config::devices::{DiskConfig, Engine};
use crate::devices::virtio::feature;
use crate::devices::virtio::testing::{Driver, MEMORY, Part, WRITE};
use crate::memory::ram::GuestRam;
use crate::testing::{apart, refuse_calls};

/// Chains of three parts that the driver's queue of 64 holds.
const CHAINS: u64 = 21;
const LEN: usize = 8192;

fn has_io_uring() -> bool {
    let there = io_uring::IoUring::new(1);
    if let Err(error) = &there {
        crate::testing::skip(&format!("no io_uring here ({error})"));
    }
    there.is_ok()
}

fn send_all(driver: &mut Driver, kind: u32) {
    for number in 0..CHAINS {
        let header = header(kind, number * (LEN / 512) as u64);
        let data = pattern(LEN, number + 1);
        let part = if kind == OUT { Part::Out(&data) } else { Part::In(LEN) };
        driver.send(0, &[Part::Out(&header), part, Part::In(1)]);
    }
}

/// Takes all responses, by the order in which the requests were sent.
fn take_all(driver: &mut Driver, first_head: u16) -> BTreeMap<u16, Vec<u8>> {
    let mut responses = BTreeMap::new();
    for _ in 0..CHAINS {
        let mut used = driver.wait(0);
        assert_eq!(used.written.pop(), Some(DONE));
        let number = (used.head + 64 - first_head) % 64 / 3;
        assert!(responses.insert(number, used.written).is_none(), "completed twice");
    }
    assert!(driver.poll(0).is_none());
    responses
}

#[test]
fn requests_in_flight_transfer_their_own_data() {
    if !has_io_uring() {
        return;
    }
    let dir = TestDir::new();
    let path = dir.file("image", &vec![0; LEN * CHAINS as usize]);
    let mut driver = Driver::new(Block::open(&disk_on(Engine::IoUring, &path)).unwrap());
    let mut first_head = 0;
    for _ in 0..20 {
        driver.set(0x64, 1);
        send_all(&mut driver, OUT);
        take_all(&mut driver, first_head);
        driver.until("the interrupt", |driver| (driver.get(0x60) == 1).then_some(()));
        send_all(&mut driver, IN);
        first_head = (first_head + 63) % 64;
        for (number, data) in take_all(&mut driver, first_head) {
            assert!(data == pattern(LEN, u64::from(number) + 1), "{number}");
        }
        first_head = (first_head + 63) % 64;
    }
    assert_eq!(flush(&mut driver), DONE);
    drop(driver);
    assert!(fs::read(&path).unwrap()[LEN..2 * LEN] == pattern(LEN, 2));
}

/// Some of the written clusters are in the layer; most have to be copied up first.
#[test]
fn requests_in_flight_on_layers_transfer_their_own_data() {
    if !has_io_uring() {
        return;
    }
    let dir = TestDir::new();
    let base = dir.file("base", &pattern(LEN * CHAINS as usize + (64 << 10), 99));
    let layer = |name: &str, beneath: Option<&str>| DiskConfig {
        beneath: beneath.map(|name| dir.path(name).as_path().into()),
        layer: Some(dir.path(name).as_path().into()),
        ..disk_on(Engine::IoUring, &base)
    };
    let mut below = Driver::new(Block::open(&layer("below", None)).unwrap());
    assert_eq!(write(&mut below, 0, &[9; 512]), DONE);
    below.transport.halt();
    drop(below);
    let mut driver = Driver::new(Block::open(&layer("mine", Some("below"))).unwrap());
    assert_eq!(read(&mut driver, 0, 512).unwrap(), [9; 512]);
    assert_eq!(write(&mut driver, 8, &[1; 512]), DONE);
    let mut first_head = 5;
    for _ in 0..5 {
        for kind in [OUT, IN] {
            send_all(&mut driver, kind);
            let responses = take_all(&mut driver, first_head);
            for (number, data) in responses.iter().filter(|_| kind == IN) {
                assert!(*data == pattern(LEN, u64::from(*number) + 1), "{number}");
            }
            first_head = (first_head + 63) % 64;
        }
    }
    assert_eq!(flush(&mut driver), DONE);
    driver.transport.halt();
    drop(driver);
    let mut again = Driver::new(Block::open(&layer("mine", Some("below"))).unwrap());
    assert!(read(&mut again, 2 * LEN as u64 / 512, LEN).unwrap() == pattern(LEN, 3));
    let whole = fs::read(&base).unwrap();
    assert!(whole == pattern(whole.len(), 99), "the base was written to");
}

#[test]
fn requests_in_flight_are_completed_before_a_snapshot() {
    if !has_io_uring() {
        return;
    }
    let dir = TestDir::new();
    let file = open_both_ways(&dir.file("image", &vec![0; LEN * CHAINS as usize]));
    let config = DiskConfig { engine: Engine::IoUring, ..by_descriptor(&file) };
    let mut driver = Driver::new(Block::open(&config).unwrap());
    let mut first_head = 0;
    for kind in [OUT, IN, OUT, IN, IN, IN] {
        send_all(&mut driver, kind);
        driver.move_to(Block::open(&config).unwrap());
        let responses = take_all(&mut driver, first_head);
        if kind == IN {
            assert!(responses.iter().all(|(number, data)| *data == pattern(LEN, u64::from(*number) + 1)));
        }
        first_head = (first_head + 63) % 64;
    }
}

#[test]
fn failed_and_successful_requests_in_flight_get_their_own_status() {
    if !has_io_uring() {
        return;
    }
    let dir = TestDir::new();
    let path = dir.file("image", &pattern(64 << 10, 3));
    let mut driver = Driver::new(Block::open(&disk_on(Engine::IoUring, &path)).unwrap());
    let file = open_both_ways(&path);
    file.set_len(32 << 10).unwrap();
    let sent: Vec<(u16, u8)> = (0..CHAINS)
        .map(|number| {
            let sector = number * 8; // every fourth lies beyond the disk's end, too
            let good = sector < 64;
            let chain = [Part::Out(&header(IN, sector)), Part::In(512), Part::In(1)];
            (driver.send(0, &chain), if good { DONE } else { FAILED })
        })
        .collect();
    let statuses: BTreeMap<u16, u8> =
        sent.iter().map(|_| driver.wait(0)).map(|used| (used.head, status(&used))).collect();
    assert_eq!(statuses, sent.into_iter().collect());
}

#[test]
fn invalid_chain_ends_requests_in_flight() {
    if !has_io_uring() {
        return;
    }
    let dir = TestDir::new();
    let path = dir.file("image", &vec![7; LEN * CHAINS as usize]);
    let config = disk_on(Engine::IoUring, &path);
    let mut driver = Driver::new(Block::open(&config).unwrap());
    for _ in 0..10 {
        for number in 0..CHAINS {
            driver.send(0, &[Part::Out(&header(IN, number)), Part::In(LEN), Part::In(1)]);
        }
        driver.describe(0, 63, (MEMORY, 1), WRITE, 0);
        driver.offer(0, 63);
        driver.wait_broken();
        driver.set_up(!feature::EVENT_IDX);
        assert_eq!(read(&mut driver, 0, 512).unwrap(), [7; 512]);
        assert!(driver.poll(0).is_none(), "a response to the previous driver");
        driver.set_up(!feature::EVENT_IDX);
    }
}

/// Returns the outcome of a flush of a file for each result that the kernel may give.
fn outcome_of_flush(wanted: OpenMode) -> impl Fn(i32) -> std::io::Result<()> + Clone + Send {
    let dir = TestDir::new();
    let file = HostFile::open("disk0", &FileRef::Path(dir.file("image", &[0; 512])), wanted).unwrap();
    let (file, ram) = (Arc::new(file), GuestRam::reserve(MEMORY).unwrap());
    move |result: i32| {
        let flush = PendingFlush { file: 0, sync: file.begin_sync().unwrap(), is_map_written: false };
        let (operation, location) = (Operation::Flush(flush), FileOffset { file: 0, at: 0 });
        let mut request = UringRequest { operation, at: 0, location, len: 0, pieces: Vec::new() };
        let done = request.outcome(&file, &ram, result);
        let Operation::Flush(flush) = &mut request.operation else { unreachable!() };
        flush.sync.record(true);
        done
    }
}

/// The kernel gives EINVAL if a file system has no sync: erofs, squashfs, iso9660.
#[test]
fn flush_of_a_file_that_is_only_read_succeeds_where_the_file_system_has_no_sync() {
    let (read, written) = (outcome_of_flush(OpenMode::Read), outcome_of_flush(OpenMode::Write));
    read(-libc::EINVAL).unwrap();
    read(-libc::EIO).unwrap_err();
    written(-libc::EINVAL).unwrap_err();
    apart(move || {
        refuse_calls(&[libc::SYS_fdatasync], libc::EINVAL);
        read(-libc::EINTR).unwrap();
        written(-libc::EINTR).unwrap_err();
    });
}

#[test]
fn flush_that_the_kernel_did_not_try_is_done_at_once() {
    let outcome = outcome_of_flush(OpenMode::Write);
    outcome(-libc::EIO).unwrap_err();
    for result in [-libc::EINTR, -libc::EAGAIN] {
        outcome(result).unwrap();
    }
    apart(move || {
        refuse_calls(&[libc::SYS_fdatasync], libc::EIO);
        for result in [-libc::EINTR, -libc::EAGAIN] {
            outcome(result).unwrap_err();
        }
    });
}
