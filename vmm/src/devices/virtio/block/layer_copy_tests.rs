//! Tests of copies of layers that are made while the disk is written.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::thread;

use super::super::super::copy::MAX_BUFFERED;
use super::*;
use crate::run_control::RunState;
use crate::sync::lock;

fn empty_file(path: &Path) -> File {
    File::options().read(true).write(true).create_new(true).open(path).unwrap()
}

/// Copies in passes while a driver writes. `model` gets the disk's bytes at the last halt.
fn copy_while_written(
    (driver, disk): (&mut Driver, &Arc<Mutex<Block>>),
    model: &mut [u8],
    random: &mut Random,
    to: File,
) {
    let source = lock(disk).begin_copy().unwrap().unwrap();
    let mut copy = LayerCopy::begin(source, to).unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| scribble(driver, model, random, 12));
        copy.copy_bulk(&|_| true).unwrap();
        let mut passes = 0;
        while !writer.is_finished() || passes < 3 {
            copy.add(lock(disk).take_written());
            assert!(copy.pass(RunState::Running, &|_| (), |_| true).unwrap());
            passes += 1;
        }
    });
    scribble(driver, model, random, 1);
    driver.transport.halt();
    copy.add(lock(disk).take_written());
    // A write in flight at the last pass counts again, so these may be all six.
    assert!(copy.remaining() > 0, "nothing was written since the last pass");
    let before = copy.remaining();
    let all = copy.pass(RunState::Paused, &|_| (), |left| left == before).unwrap();
    assert!(all == (copy.remaining() == 0) && copy.remaining() < before, "stopped after one step");
    assert!(copy.pass(RunState::Paused, &|_| (), |_| true).unwrap());
    lock(disk).end_copy();
    driver.transport.resume().unwrap();
    // Later writes are not in the copy.
    scribble(driver, &mut model.to_vec(), random, 4);
    copy.finish(&|_| ()).unwrap();
    assert!(lock(disk).take_written().is_empty());
}

#[test]
fn copy_made_while_the_disk_is_written_is_the_disk_of_the_last_halt() {
    on_both_engines(|engine| {
        for (seed, beneath) in [(40, false), (41, true), (42, false), (43, true)] {
            let based = LayerFixture { engine, ..LayerFixture::new() };
            let (mut random, mut model) = (Random(seed), based.content[..LEN].to_vec());
            let mut driver = start(&based.layer("first"));
            scribble(&mut driver, &mut model, &mut random, 2);
            let config = if beneath { based.over("first", "mine") } else { based.layer("first") };
            let mut opened = None;
            reopen_shared(&mut driver, || {
                Arc::clone(opened.insert(Arc::new(Mutex::new(Block::open(&config).unwrap()))))
            });
            let disk = opened.unwrap();
            let to = empty_file(&based.dir.path("copy"));
            copy_while_written((&mut driver, &disk), &mut model, &mut random, to);
            assert!(read(&mut start(&based.layer("copy")), 0, LEN).unwrap() == model, "seed {seed}");
            based.assert_untouched();
        }
    });
}

#[test]
fn writes_are_logged_only_while_a_copy_is_made() {
    let based = LayerFixture::new();
    let mut disk = Block::open(&based.layer("layer")).unwrap();
    disk.storage.begin_write(0, 1 << 16).unwrap().unwrap();
    disk.storage.end_write(0, 1 << 16, Ok(())).unwrap();
    assert!(disk.take_written().is_empty());
    drop(disk);
    assert!(Block::open(&super::disk(&based.base)).unwrap().begin_copy().unwrap().is_none(), "no layer");
}

/// Length of the base, most of it a hole.
const BIG: u64 = 2 << 30;

/// A discard of 1 GiB would be 16,384 clusters to log, and as many to copy in the pause.
#[test]
fn large_discard_is_copied_as_one_range() {
    on_both_engines(|engine| {
        let based = LayerFixture { engine, ..LayerFixture::new() };
        let big = based.dir.path("big");
        File::create(&big).unwrap().set_len(BIG).unwrap();
        let config = |name| DiskConfig { path: big.as_path().into(), ..based.layer(name) };
        let mut driver = start(&config("layer"));
        for sector in [0, 1 << 20, 1 << 21, (1 << 21) + 200] {
            assert_eq!(write(&mut driver, sector, &[1; 512]), DONE);
        }
        let mut opened = None;
        reopen_shared(&mut driver, || {
            Arc::clone(opened.insert(Arc::new(Mutex::new(Block::open(&config("layer")).unwrap()))))
        });
        let disk = opened.unwrap();
        let source = lock(&disk).begin_copy().unwrap().unwrap();
        let mut copy = LayerCopy::begin(source, empty_file(&based.dir.path("copy"))).unwrap();
        copy.copy_bulk(&|_| true).unwrap();
        assert_eq!(discard(&mut driver, 0, 1 << 21), DONE);
        assert_eq!(write(&mut driver, 5, &[2; 512]), DONE);
        copy.add(lock(&disk).take_written());
        let looks = Cell::new(0);
        assert!(
            copy.pass(RunState::Paused, &|_| (), |_| {
                looks.set(looks.get() + 1);
                true
            })
            .unwrap()
        );
        assert!(looks.get() <= 2, "copied in {} steps", looks.get());
        lock(&disk).end_copy();
        copy.finish(&|_| ()).unwrap();
        let mut copied = start(&config("copy"));
        for (sector, byte) in [(0, 0), (5, 2), (1 << 20, 0), (1 << 21, 1), ((1 << 21) + 200, 1)] {
            assert_eq!(read(&mut copied, sector, 512).unwrap(), [byte; 512], "sector {sector}");
        }
    });
}

/// Each pass finds more than the memory limit.
#[test]
fn copy_of_a_disk_that_is_written_faster_stays_within_its_memory_limit() {
    const MIB: u64 = 160;
    let based = LayerFixture::new();
    let (big, limit) = (based.dir.path("big"), MAX_BUFFERED * CLUSTER);
    File::create(&big).unwrap().set_len(MIB << 20).unwrap();
    let config = |name| DiskConfig { path: big.as_path().into(), ..based.layer(name) };
    let mut driver = start(&config("layer"));
    let mut opened = None;
    reopen_shared(&mut driver, || {
        Arc::clone(opened.insert(Arc::new(Mutex::new(Block::open(&config("layer")).unwrap()))))
    });
    let disk = opened.unwrap();
    let mut fill = |from: u64, to: u64, byte: u8| {
        let data = vec![byte; 1 << 20];
        (from..to).for_each(|mib| assert_eq!(write(&mut driver, mib << 11, &data), DONE));
    };
    fill(0, 16, 1);
    let source = lock(&disk).begin_copy().unwrap().unwrap();
    let mut copy = LayerCopy::begin(source, empty_file(&based.dir.path("copy"))).unwrap();
    copy.copy_bulk(&|_| true).unwrap();
    let (reserved, written) = (Cell::new(0), Cell::new(0));
    let pass = |copy: &mut LayerCopy, guest| {
        copy.add(lock(&disk).take_written());
        if guest == RunState::Running {
            reserved.set(reserved.get() + copy.reserve_remaining().unwrap());
        }
        let about_to_write = |bytes| written.set(written.get() + bytes);
        assert!(copy.pass(guest, &about_to_write, |_| true).unwrap());
        let in_memory = copy.pause_buffer.memory().metadata().unwrap().blocks() * 512;
        assert!(in_memory <= limit && copy.buffered() <= limit, "{in_memory} bytes in memory");
        in_memory
    };
    // Many clusters go straight to the file.
    fill(0, 100, 2);
    assert_eq!(pass(&mut copy, RunState::Running), 0);
    assert_eq!((reserved.get(), written.get()), (84 << 20, 84 << 20), "16 MiB had space already");
    // Few clusters are buffered, up to half of the limit.
    (0..4).for_each(|step| {
        fill(80 + step * 20, 100 + step * 20, 3);
        pass(&mut copy, RunState::Running);
    });
    assert_eq!(copy.buffered(), limit / 2);
    assert_eq!(reserved.get(), (MIB - 16) << 20);
    // The pause may use the rest.
    fill(0, MIB, 4);
    fill(50, 60, 5);
    assert_eq!(pass(&mut copy, RunState::Paused), limit);
    lock(&disk).end_copy();
    copy.finish(&|bytes| written.set(written.get() + bytes)).unwrap();
    assert_eq!(written.get(), reserved.get(), "all reserved space is reported as it is written");
    let mut copied = start(&config("copy"));
    for mib in 0..MIB {
        let expected = if (50..60).contains(&mib) { 5 } else { 4 };
        assert!(read(&mut copied, mib << 11, 1 << 20).unwrap() == vec![expected; 1 << 20], "MiB {mib}");
    }
}
