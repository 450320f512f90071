//! Each completion of a disk's work fails once with each error, or is short. The driver then gets an error,
//! or the disk has its data.

use std::sync::atomic::Ordering;

use super::super::Block;
use super::super::testing::{DONE, FAILED, TestDir, disk_on, flush, pattern, read, write};
use super::uring_faults::{CompletionFault, OtherResult};
use crate::config::devices::{DiskConfig, Engine};
use crate::devices::virtio::testing::Driver;

const LEN: usize = 8192;
/// Sectors of a write.
const SECTORS: u64 = (LEN / 512) as u64;
const WRITES: u64 = 6;

const RESULTS: [OtherResult; 6] = [
    OtherResult::Error(libc::ENOSPC),
    OtherResult::Error(libc::EIO),
    OtherResult::Error(libc::EINTR),
    OtherResult::Error(libc::EAGAIN),
    OtherResult::Error(libc::ENOMEM),
    OtherResult::Half,
];

/// The result of one run: the status of each write, and of the flush after it.
struct Run {
    writes: Vec<u8>,
    flushes: Vec<u8>,
    completions: usize,
}

/// Writes, flushes and reads on a new disk with this fault.
fn run(config: &DiskConfig, fault: Option<(usize, OtherResult)>) -> Run {
    let completions = CompletionFault::plan(fault);
    let mut driver = Driver::new(Block::open(config).unwrap());
    let (mut writes, mut flushes) = (Vec::new(), Vec::new());
    for number in 0..WRITES {
        let data = pattern(LEN, number + 1);
        writes.push(write(&mut driver, number * SECTORS, &data));
        flushes.push(flush(&mut driver));
        if let Ok(found) = read(&mut driver, number * SECTORS, LEN) {
            assert!(
                found == data || writes.last() == Some(&FAILED),
                "{fault:?}: write {number} reads otherwise"
            );
        }
    }
    driver.transport.halt();
    drop(driver);
    Run { writes, flushes, completions: completions.load(Ordering::Relaxed) }
}

/// Checks that the disk has each write that was reported done and that a flush followed.
fn has_writes(config: &DiskConfig, run: &Run, context: &str) {
    let mut driver = Driver::new(Block::open(config).unwrap());
    let flushed = run.flushes.iter().rposition(|status| *status == DONE).map_or(0, |last| last + 1);
    for (number, status) in (0..WRITES).zip(&run.writes[..flushed]) {
        let found = read(&mut driver, number * SECTORS, LEN).unwrap();
        let kept = found == pattern(LEN, number + 1);
        assert!(kept || *status == FAILED, "{context}: write {number} is lost");
    }
    assert_eq!((write(&mut driver, 0, &[1; 512]), flush(&mut driver)), (DONE, DONE), "{context}");
}

/// Tries each result for each completion. `config` makes a disk of a new name.
fn each(config: impl Fn(usize) -> DiskConfig) {
    if let Err(error) = io_uring::IoUring::new(1) {
        crate::testing::skip(&format!("no io_uring here ({error})"));
        return;
    }
    let whole = run(&config(0), None);
    assert!(whole.writes.iter().chain(&whole.flushes).all(|status| *status == DONE));
    let cases: Vec<_> =
        (0..whole.completions).flat_map(|number| RESULTS.map(|result| (number, result))).collect();
    println!("faults: {} completions of io_uring, {} cases", whole.completions, cases.len());
    for (disk, case) in (1..).zip(cases) {
        let (config, context) = (config(disk), format!("{case:?}"));
        let run = run(&config, Some(case));
        // An interrupted or short request is finished by the engine.
        let is_finished = match case.1 {
            OtherResult::Half => true,
            OtherResult::Error(errno) => [libc::EINTR, libc::EAGAIN].contains(&errno),
        };
        let failed = run.writes.iter().chain(&run.flushes).filter(|status| **status == FAILED).count();
        assert!(failed == 0 || !is_finished, "{context}: {failed} requests failed");
        has_writes(&config, &run, &context);
    }
}

#[test]
fn image_keeps_each_write_after_a_failed_completion() {
    let dir = TestDir::new();
    each(|number| disk_on(Engine::IoUring, dir.file(&format!("image-{number}"), &vec![0; 1 << 20])));
}

#[test]
fn layer_keeps_each_write_after_a_failed_completion() {
    let dir = TestDir::new();
    let base = dir.file("base", &vec![0; 1 << 20]);
    each(|number| DiskConfig {
        layer: Some(dir.path(&format!("layer-{number}")).as_path().into()),
        ..disk_on(Engine::IoUring, &base)
    });
}
