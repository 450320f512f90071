//! Copies of layers, made while the disk is written.

use std::fs::File;
use std::thread;

use super::*;
use crate::sync::lock;

fn empty_file(path: &Path) -> File {
    File::options().read(true).write(true).create_new(true).open(path).unwrap()
}

/// Copies in passes while a driver writes. Returns the bytes of the disk as they were when it was halted last.
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
        copy.copy_bulk().unwrap();
        let mut passes = 0;
        while !writer.is_finished() || passes < 3 {
            copy.add(lock(disk).take_written());
            assert!(copy.pass(|_| true).unwrap());
            passes += 1;
        }
    });
    scribble(driver, model, random, 1);
    driver.transport.halt();
    copy.add(lock(disk).take_written());
    assert!((1..=5).contains(&copy.left()), "{} clusters were written since the last pass", copy.left());
    let before = copy.left();
    assert!(!copy.pass(|left| left == before).unwrap() || before == 1, "stopped after one");
    assert!(copy.pass(|_| true).unwrap());
    lock(disk).end_copy();
    driver.transport.go_on().unwrap();
    // What is written from now on is not in the copy.
    scribble(driver, &mut model.to_vec(), random, 4);
    copy.finish().unwrap();
    assert!(lock(disk).take_written().is_empty());
}

#[test]
fn copy_made_while_the_disk_is_written_is_the_disk_of_the_last_halt() {
    on_both_engines(|engine| {
        for (seed, beneath) in [(40, false), (41, true), (42, false), (43, true)] {
            let based = Based { engine, ..Based::new() };
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
fn nothing_is_noted_unless_a_copy_is_made() {
    let based = Based::new();
    let mut disk = Block::open(&based.layer("layer")).unwrap();
    disk.storage.note_write(0, 1 << 16);
    assert!(disk.take_written().is_empty());
    drop(disk);
    assert!(Block::open(&super::disk(&based.base)).unwrap().begin_copy().unwrap().is_none(), "no layer");
}
