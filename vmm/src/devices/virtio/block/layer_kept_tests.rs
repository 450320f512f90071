//! What of a layer is left after the process was killed, after a crash of the host, and after an orderly end.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustix::fs::{FallocateFlags, fallocate};
use virtio_bindings::virtio_blk::VIRTIO_BLK_F_WRITE_ZEROES;

use super::super::super::Block;
use super::super::super::live::pretend_reboot;
use super::super::super::request::{SECTOR, Stretch};
use super::super::super::storage::{Flush, Storage};
use super::super::super::testing::{
    DONE, Dir, FAILED, Random, Small, disk_on, flush, on_both_engines, read, start, write, write_zeroes,
};
use super::{Based, LEN, scribble};
use crate::config::FileRef;
use crate::config::devices::{Cache, DiskConfig, Engine};
use crate::devices::virtio::block::map::CLUSTER;
use crate::devices::virtio::feature;
use crate::devices::virtio::testing::{Driver, MEMORY};
use crate::error::report;
use crate::memory::backing::Backing;
use crate::memory::ram::GuestRam;
use crate::testing::{apart, limited, refuse_calls};

/// What a live map of these bases takes at the end of a layer's file.
pub(super) const LIVE_LEN: usize = 4096 + 4096;

/// What a killed process leaves: the file as it is, with none of what was only in memory.
fn killed(based: &Based) -> DiskConfig {
    fs::copy(based.dir.path("layer"), based.dir.path("left")).unwrap();
    based.layer("left")
}

/// The same after a crash of the host that left all of the file: what counts of it is what was synced.
fn crashed(based: &Based) -> DiskConfig {
    let left = killed(based);
    reboot(&based.dir.path("left"));
    left
}

/// Makes a layer's live map one of another boot.
fn reboot(layer: &Path) {
    let file = fs::File::options().read(true).write(true).open(layer).unwrap();
    let mut id = [0; 8];
    file.read_exact_at(&mut id, 40 - 8).unwrap();
    let at = file.metadata().unwrap().len() - LIVE_LEN as u64;
    pretend_reboot(&file, at, u64::from_le_bytes(id));
}

#[test]
fn host_crash_takes_nothing_that_was_flushed() {
    on_both_engines(|engine| {
        let based = Based { engine, ..Based::new() };
        let mut driver = start(&based.layer("layer"));
        assert_eq!(write(&mut driver, 1, &[1; 512]), DONE);
        assert_eq!(flush(&mut driver), DONE);
        assert_eq!(write(&mut driver, 300, &[2; 512]), DONE);
        let mut after = start(&crashed(&based));
        assert_eq!(read(&mut after, 1, 512).unwrap(), [1; 512]);
        assert!(read(&mut after, 300, 512).unwrap() == based.content[300 * 512..301 * 512]);
        // What the lost write left in the file is not seen where zeros or the base's bytes are wanted.
        assert_eq!(write(&mut after, 301, &[3; 512]), DONE);
        assert!(read(&mut after, 300, 512).unwrap() == based.content[300 * 512..301 * 512]);
        drop(after);
        let mut after = start(&crashed(&based));
        assert_eq!(write_zeroes(&mut after, 256, 128, true), DONE);
        assert_eq!(read(&mut after, 256, 128 * 512).unwrap(), vec![0; 128 * 512]);
    });
}

#[test]
fn killed_process_leaves_all_that_was_written() {
    on_both_engines(|engine| {
        for cache in [Cache::Writeback, Cache::Unsafe] {
            let based = Based { engine, ..Based::new() };
            let mut model = based.content[..LEN].to_vec();
            let mut driver = start(&DiskConfig { cache, ..based.layer("layer") });
            scribble(&mut driver, &mut model, &mut Random(40), 3);
            let left = killed(&based);
            assert!(read(&mut start(&left), 0, LEN).unwrap() == model, "{cache:?}");
            // Whoever only reads it finds as much, and writes nothing.
            let before = fs::read(based.dir.path("left")).unwrap();
            let mut reader = start(&DiskConfig { read_only: true, ..left });
            assert!(read(&mut reader, 0, LEN).unwrap() == model, "{cache:?}");
            drop(reader);
            assert!(fs::read(based.dir.path("left")).unwrap() == before);
        }
    });
}

/// What only the live map had is in the synced one after the next flush, and after the next orderly end.
#[test]
fn clusters_of_a_killed_process_survive_a_reboot_once_they_were_taken_over() {
    for ends in [false, true] {
        let based = Based::new();
        let mut driver = start(&based.layer("layer"));
        assert_eq!(write(&mut driver, 1, &[1; 512]), DONE);
        let left = killed(&based);
        drop(driver);
        if ends {
            Block::open(&left).unwrap().settle().unwrap();
        } else {
            assert_eq!(flush(&mut start(&left)), DONE);
        }
        reboot(&based.dir.path("left"));
        assert_eq!(read(&mut start(&left), 1, 512).unwrap(), [1; 512], "{ends}");
    }
}

/// The layer above names all clusters of the one below by their digest, so these must count after a reboot
/// too.
#[test]
fn layer_over_one_of_a_killed_process_is_opened_after_a_reboot() {
    on_both_engines(|engine| {
        let based = Based { engine, ..Based::new() };
        let mut driver = start(&based.layer("layer"));
        assert_eq!(write(&mut driver, 1, &[1; 512]), DONE);
        killed(&based);
        drop(driver);
        let over = based.over("left", "over");
        // A disk that is only read needs no more than the live map, and writes nothing.
        let before = fs::read(based.dir.path("left")).unwrap();
        let reader = DiskConfig { read_only: true, ..over.clone() };
        drop(start(&over));
        fs::write(based.dir.path("left"), &before).unwrap();
        drop(start(&reader));
        assert!(fs::read(based.dir.path("left")).unwrap() == before);
        let mut driver = start(&over);
        assert_eq!(write(&mut driver, 300, &[2; 512]), DONE);
        assert_eq!(flush(&mut driver), DONE);
        drop(driver);
        reboot(&based.dir.path("left"));
        reboot(&based.dir.path("over"));
        let mut driver = start(&over);
        assert_eq!(read(&mut driver, 1, 512).unwrap(), [1; 512]);
        assert_eq!(read(&mut driver, 300, 512).unwrap(), [2; 512]);
    });
}

/// What lies below may still be in the page cache: a copy that was just made, or the layer of a VM that has
/// just ended.
#[test]
fn first_flush_needs_the_files_below_to_be_synced() {
    let based = Based::new();
    drop(start(&based.layer("below")));
    let over = based.over("below", "over");
    drop(start(&over));
    apart({
        let over = over.clone();
        move || {
            refuse_calls(&[libc::SYS_fdatasync, libc::SYS_fsync], libc::EIO);
            let mut storage = Block::open(&over).expect("a restore syncs nothing").storage;
            storage.begin_flush().unwrap_err();
            let why = storage.flush().unwrap_err().to_string();
            assert!(why.contains("an earlier sync failed"), "{why}");
        }
    });
    let mut storage = Block::open(&over).unwrap().storage;
    storage.begin_flush().unwrap().unwrap().sync.note(true);
    apart(move || {
        refuse_calls(&[libc::SYS_fdatasync, libc::SYS_fsync], libc::EIO);
        assert!(storage.begin_flush().unwrap().is_some(), "once is enough");
    });
}

#[test]
fn orderly_end_syncs_the_map_that_it_writes() {
    let based = Based::new();
    let mut storage = Block::open(&based.layer("layer")).unwrap().storage;
    storage.write_zeroes(zero(0)).unwrap();
    storage.settle().unwrap();
    let syncs = storage.overlay().unwrap().layer.syncs().begun();
    assert_eq!(syncs, 2, "one for the data and one for the map");
}

/// An image that is only read may have been made a moment ago, as a base may.
#[test]
fn snapshot_needs_every_file_that_it_does_not_copy_to_be_synced() {
    let based = Based::new();
    let read_only = DiskConfig { read_only: true, ..raw(&based) };
    for config in [raw(&based), read_only, based.layer("layer"), based.over("layer", "over")] {
        let disk = Block::open(&config).unwrap();
        disk.files().unwrap().sync().unwrap();
        apart(move || {
            refuse_calls(&[libc::SYS_fsync], libc::EIO);
            disk.files().unwrap().sync().unwrap_err();
        });
    }
}

/// Bits of an earlier boot do not count again because there are some of this one.
#[test]
fn live_map_starts_empty_after_a_reboot() {
    let based = Based::new();
    let mut driver = start(&based.layer("layer"));
    assert_eq!(write(&mut driver, 1, &[1; 512]), DONE);
    reboot(&based.dir.path("layer"));
    drop(driver);
    let mut driver = start(&based.layer("layer"));
    assert!(read(&mut driver, 1, 512).unwrap() == based.content[512..1024]);
    assert_eq!(write(&mut driver, 300, &[3; 512]), DONE);
    let mut after = start(&killed(&based));
    assert_eq!(read(&mut after, 300, 512).unwrap(), [3; 512]);
    assert!(read(&mut after, 1, 512).unwrap() == based.content[512..1024]);
}

#[test]
fn damaged_live_map_does_not_count() {
    let based = Based::new();
    let mut driver = start(&based.layer("layer"));
    assert_eq!(write(&mut driver, 1, &[1; 512]), DONE);
    for at in [0, 8, 16, 31, 39] {
        let left = killed(&based);
        let path = based.dir.path("left");
        let mut bytes = fs::read(&path).unwrap();
        let header = bytes.len() - LIVE_LEN;
        bytes[header + at] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert!(read(&mut start(&left), 1, 512).unwrap() == based.content[512..1024], "{at}");
    }
}

#[test]
fn orderly_end_brings_everything_into_the_synced_map() {
    on_both_engines(|engine| {
        for cache in [Cache::Writeback, Cache::Unsafe] {
            let based = Based { engine, ..Based::new() };
            let mut model = based.content[..LEN].to_vec();
            let block =
                Arc::new(Mutex::new(Block::open(&DiskConfig { cache, ..based.layer("layer") }).unwrap()));
            let ram = GuestRam::reserve(MEMORY).unwrap();
            Backing::Fresh.map(&ram).unwrap();
            let mut driver = Driver::with_memory(Arc::clone(&block) as _, ram, !feature::EVENT_IDX);
            scribble(&mut driver, &mut model, &mut Random(41), 3);
            driver.transport.halt();
            block.lock().unwrap().settle().unwrap();
            assert!(read(&mut start(&crashed(&based)), 0, LEN).unwrap() == model, "{cache:?}");
        }
    });
}

/// Made by volt-vmm f290a97: 3 sectors of 1 to 3 in the one cluster of a base of 4 KiB of sevens.
fn layer_of_version_1(based: &Based) -> DiskConfig {
    let header = [
        &b"VOLTLAYR\x01\0\0\0\0\0\x01\0\0\x10\0\0\0\0\0\0"[..],
        &[0xfe, 0xab, 0xa3, 0xfc, 0xf7, 0x9b, 0x6f, 0x1c],
        &[0x9e, 0x3d, 0x57, 0x0e, 0xae, 0x06, 0x6f, 0x1b],
        &[0x82, 0x4e, 0x89, 0x74, 0x7b, 0x58, 0x53, 0xb2],
    ];
    let mut layer = vec![0; 2 * CLUSTER as usize];
    layer[..48].copy_from_slice(&header.concat());
    layer[4096] = 1;
    let data = &mut layer[CLUSTER as usize..][..4096];
    data.fill(7);
    (1..4).for_each(|sector| data[sector * 512..][..512].fill(sector as u8));
    let base = based.dir.file("sevens", &[7; 4096]);
    based.dir.file("old", &layer);
    DiskConfig { path: base.as_path().into(), ..based.layer("old") }
}

#[test]
fn layer_of_version_1_is_read_and_becomes_one_of_this_version_when_it_is_written() {
    let based = Based::new();
    let config = layer_of_version_1(&based);
    let path = based.dir.path("old");
    let old = fs::read(&path).unwrap();
    let mut expected = vec![7; 4096];
    (1..4).for_each(|sector| expected[sector * 512..][..512].fill(sector as u8));
    let mut reader = start(&DiskConfig { read_only: true, ..config.clone() });
    assert!(read(&mut reader, 0, 4096).unwrap() == expected);
    drop(reader);
    assert!(fs::read(&path).unwrap() == old);
    // It lies below others as before, and they know it by what it was called.
    let over = DiskConfig {
        beneath: Some(path.as_path().into()),
        ..DiskConfig { path: config.path.clone(), ..based.layer("over") }
    };
    drop(start(&over));
    let mut writer = start(&config);
    assert_eq!(write(&mut writer, 5, &[5; 512]), DONE);
    expected[5 * 512..6 * 512].fill(5);
    drop(writer);
    assert!(read(&mut start(&config), 0, 4096).unwrap() == expected);
    assert_eq!(fs::read(&path).unwrap()[8], 2);
    drop(start(&over));
}

/// A nameless layer has no live map, costs no sync, and is whole for whoever has its descriptor.
#[test]
fn layer_without_a_name_is_never_synced_and_has_no_live_map() {
    let based = Based::new();
    let path = based.dir.file("nameless", b"");
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let config = DiskConfig { layer: Some(FileRef::Fd(file.as_raw_fd())), ..based.layer("none") };
    let mut driver = start(&config);
    assert_eq!(write(&mut driver, 1, &[1; 512]), DONE);
    assert_eq!(flush(&mut driver), DONE);
    driver.transport.halt();
    drop(driver);
    assert_eq!(file.metadata().unwrap().len(), CLUSTER + 6 * CLUSTER);
    let mut storage = Block::open(&config).unwrap().storage;
    apart(move || {
        refuse_calls(&[libc::SYS_fsync, libc::SYS_fdatasync], libc::EIO);
        file.sync_data().unwrap_err();
        storage.write_zeroes(zero(1)).unwrap();
        assert!(storage.begin_flush().unwrap().is_none(), "io_uring has nothing to sync");
        storage.flush().unwrap();
        storage.settle().unwrap();
    });
}

/// The process that made a layer may have been killed before anything was flushed.
#[test]
fn first_flush_of_a_layer_that_was_there_needs_its_directory() {
    on_both_engines(|engine| {
        let based = Based { engine, ..Based::new() };
        let (there, gone) = (based.dir.path("there"), based.dir.path("gone"));
        fs::create_dir(&there).unwrap();
        let layer = || based.layer("there/layer");
        let mut driver = start(&layer());
        assert_eq!(write(&mut driver, 1, &[1; 512]), DONE);
        drop(driver);
        let mut driver = start(&layer());
        // A directory that cannot be opened cannot be synced.
        fs::rename(&there, &gone).unwrap();
        assert_eq!(flush(&mut driver), FAILED);
        fs::rename(&gone, &there).unwrap();
        assert_eq!(flush(&mut driver), DONE);
        fs::rename(&there, &gone).unwrap();
        assert_eq!(flush(&mut driver), DONE, "once is enough");
    });
}

#[test]
fn rewind_that_fails_midway_leaves_no_zeros() {
    let Some(small) = Small::mount() else { return crate::testing::skip("mounting a tmpfs takes root") };
    let dir = Dir::new();
    // A map of 64 KiB.
    let base = dir.file("base", b"");
    fs::File::options().write(true).open(&base).unwrap().set_len(32 << 30).unwrap();
    fs::File::options().write(true).open(&base).unwrap().write_all_at(&[5; 512], 0).unwrap();
    let layer = small.0.path("layer");
    let config = DiskConfig { layer: Some(layer.as_path().into()), ..disk_on(Engine::Sync, &base) };
    let disk = Arc::new(Mutex::new(Block::open(&config).unwrap()));
    let ram = GuestRam::reserve(MEMORY).unwrap();
    Backing::Fresh.map(&ram).unwrap();
    let mut driver = Driver::with_memory(Arc::clone(&disk) as _, ram, !0);
    assert_eq!(write(&mut driver, 0, &[1; 512]), DONE);
    driver.transport.halt();
    // There is room for the header of the new layer and for none of its maps.
    let file = fs::File::options().write(true).open(&layer).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 0, file.metadata().unwrap().len()).unwrap();
    let filler = fs::File::create(small.0.path("filler")).unwrap();
    let filled = (0..).find(|page| filler.write_all_at(&[1; 4096], page * 4096).is_err()).unwrap();
    filler.set_len((filled - 2) * 4096).unwrap();
    assert!(disk.lock().unwrap().rewind().is_err());
    drop(filler);
    fs::remove_file(small.0.path("filler")).unwrap();
    let _ = disk.lock().unwrap().settle(); // the VM ends
    drop((driver, disk));
    assert_eq!(read(&mut start(&config), 0, 512).unwrap(), [5; 512]);
}

fn synced_clusters(layer: &Path) -> u32 {
    fs::read(layer).unwrap()[4096..8192].iter().map(|byte| byte.count_ones()).sum()
}

fn zero(cluster: u64) -> Stretch {
    Stretch { at: cluster * CLUSTER, len: CLUSTER, unmap: true }
}

/// A layer with one cluster, and a flush of it that is under way.
fn flushing() -> (Based, Box<dyn Storage>, Flush) {
    let based = Based::new();
    let mut storage = Block::open(&based.layer("layer")).unwrap().storage;
    storage.write_zeroes(zero(0)).unwrap();
    let flush = storage.begin_flush().unwrap().unwrap();
    (based, storage, flush)
}

#[test]
fn flush_writes_the_map_after_the_data_is_synced_and_ends_after_another_sync() {
    let (based, mut storage, mut first) = flushing();
    let layer = based.dir.path("layer");
    // Not the first one's: its sync may have begun before this was written.
    storage.write_zeroes(zero(1)).unwrap();
    assert_eq!(synced_clusters(&layer), 0);
    assert!(storage.synced(&mut first, Ok(())).unwrap(), "the map is not on disk yet");
    assert_eq!(synced_clusters(&layer), 1);
    assert!(!storage.synced(&mut first, Ok(())).unwrap());
    let mut second = storage.begin_flush().unwrap().unwrap();
    assert!(storage.synced(&mut second, Ok(())).unwrap());
    assert!(!storage.synced(&mut second, Ok(())).unwrap());
    let mut without_new_clusters = storage.begin_flush().unwrap().unwrap();
    assert!(!storage.synced(&mut without_new_clusters, Ok(())).unwrap(), "one sync is enough");
    assert_eq!(synced_clusters(&layer), 2);
}

/// A flush that was abandoned took blocks of the map, which the next one writes.
#[test]
fn flush_after_an_abandoned_one_loses_no_cluster() {
    let (based, mut storage, mut first) = flushing();
    let layer = based.dir.path("layer");
    first.sync.note(true);
    storage.abandon();
    storage.write_zeroes(zero(1)).unwrap();
    let mut second = storage.begin_flush().unwrap().unwrap();
    assert_eq!(synced_clusters(&layer), 0);
    assert!(storage.synced(&mut second, Ok(())).unwrap());
    assert_eq!(synced_clusters(&layer), 2);
    // Abandoned before the map was synced: the next one syncs after it was written.
    second.sync.note(true);
    let mut third = storage.begin_flush().unwrap().unwrap();
    assert!(!storage.synced(&mut third, Ok(())).unwrap());
}

#[test]
fn writes_do_not_ask_for_the_length_of_the_file() {
    let based = Based::new();
    let image = based.dir.file("image", &[7; 16 * 512]);
    for config in [disk_on(Engine::Sync, &image), based.layer("layer")] {
        let mut storage = Block::open(&config).unwrap().storage;
        storage.write_zeroes(Stretch { at: 0, len: 16 * 512, unmap: true }).unwrap();
        apart(move || {
            refuse_calls(&[libc::SYS_fstat, libc::SYS_newfstatat, libc::SYS_statx], libc::EIO);
            let mut write = |at| {
                let begun = storage.begin_write(at, 512).unwrap();
                assert!(begun.is_some(), "io_uring takes it");
                storage.end_write(at, 512, Ok(())).unwrap();
                storage.write_zeroes(Stretch { at, len: 512, unmap: true })
            };
            (0..100).for_each(|number| write(number % 16 * 512).unwrap());
            // It is looked at again from time to time.
            storage.forget_len();
            storage.write_zeroes(Stretch { at: 0, len: 512, unmap: true }).unwrap_err();
        });
    }
}

/// The kernel takes the pages that it could not write for written.
#[test]
fn failed_sync_fails_every_later_flush_and_leaves_the_synced_map_as_it_is() {
    let (based, mut storage, mut flush) = flushing();
    storage.synced(&mut flush, Err(std::io::ErrorKind::Other.into())).unwrap_err();
    storage.begin_flush().expect_err("it is done at once, and tells why it fails");
    let why = storage.flush().unwrap_err().to_string();
    assert!(why.contains("an earlier sync failed"), "{why}");
    storage.settle().unwrap_err();
    assert_eq!(synced_clusters(&based.dir.path("layer")), 0);
}

/// The copy would be of what the host has left, and be restored as if nothing were lost.
#[test]
fn layer_is_not_copied_after_a_failed_sync() {
    let based = Based::new();
    let mut disk = Block::open(&based.layer("layer")).unwrap();
    disk.begin_copy().unwrap().unwrap();
    disk.end_copy();
    disk.check_copy().unwrap();
    disk.storage.begin_flush().unwrap().unwrap().sync.end(Err(std::io::ErrorKind::Other.into())).unwrap_err();
    for error in [disk.begin_copy().unwrap_err(), disk.check_copy().unwrap_err()] {
        let error = report(&error);
        assert!(error.contains("disk0") && error.contains("an earlier sync failed"), "{error}");
    }
}

/// The next process would take what only the live map has for written, and sync what is left of it.
#[test]
fn layer_is_opened_after_a_failed_sync_as_after_a_power_cut() {
    let (based, mut storage, mut flush) = flushing();
    let layer = based.dir.path("layer");
    while storage.synced(&mut flush, Ok(())).unwrap() {}
    storage.write_zeroes(zero(1)).unwrap();
    storage.begin_flush().unwrap().unwrap().sync.end(Err(std::io::ErrorKind::Other.into())).unwrap_err();
    storage.write_zeroes(zero(2)).unwrap();
    drop(storage);
    let config = based.layer("layer");
    let mut reader = start(&DiskConfig { read_only: true, ..config.clone() });
    let expected = [&[0; CLUSTER as usize], &based.content[CLUSTER as usize..LEN]].concat();
    assert!(read(&mut reader, 0, LEN).unwrap() == expected, "only what was flushed before");
    drop(reader);
    // A layer over it names only that, too.
    drop(start(&based.over("layer", "over")));
    let mut storage = Block::open(&config).unwrap().storage;
    storage.flush().unwrap();
    assert_eq!(synced_clusters(&layer), 1);
    // What is written from now on survives a kill of the process as ever.
    storage.write_zeroes(zero(3)).unwrap();
    let left = killed(&based);
    assert!(read(&mut start(&left), 3 * CLUSTER / SECTOR, 512).unwrap() == [0; 512]);
}

fn raw(based: &Based) -> DiskConfig {
    let image = based.dir.file("raw", &[0; CLUSTER as usize]);
    DiskConfig { path: image.into(), layer: None, ..based.layer("none") }
}

/// The kernel reports a failed writeback to one of two syncs that are under way at once.
#[test]
fn failed_sync_fails_the_flush_that_is_under_way_beside_it() {
    let based = Based::new();
    for config in [raw(&based), based.layer("layer")] {
        let mut storage = Block::open(&config).unwrap().storage;
        let [mut first, mut second] = [(); 2].map(|()| storage.begin_flush().unwrap().unwrap());
        storage.synced(&mut first, Err(std::io::ErrorKind::Other.into())).unwrap_err();
        let why = storage.synced(&mut second, Ok(())).unwrap_err().to_string();
        assert!(why.contains("an earlier sync failed"), "{why}");
    }
}

/// A flush's completion may wait in io_uring while a snapshot's sync succeeds.
#[test]
fn snapshots_sync_fails_with_a_flush_whose_failure_is_not_noted_yet() {
    let based = Based::new();
    for config in [raw(&based), based.layer("layer")] {
        let mut disk = Block::open(&config).unwrap();
        let mut flush = disk.storage.begin_flush().unwrap().unwrap();
        let files = disk.files().unwrap();
        let synced = std::thread::scope(|scope| {
            let snapshot = scope.spawn(|| files.sync());
            let file = *disk.storage.files_to_sync().last().unwrap();
            limited("the snapshot's sync begins", || {
                while file.syncs().begun() < 2 {
                    std::thread::yield_now();
                }
            });
            disk.storage.synced(&mut flush, Err(std::io::ErrorKind::Other.into())).unwrap_err();
            limited("the snapshot's sync ends", || snapshot.join().unwrap())
        });
        synced.unwrap_err();
    }
}

/// The kernel tells of it only once: the next driver's flush would succeed.
#[test]
fn failed_sync_of_an_abandoned_flush_fails_every_later_flush() {
    let based = Based::new();
    for config in [raw(&based), based.layer("layer")] {
        let mut storage = Block::open(&config).unwrap().storage;
        storage.write_zeroes(zero(0)).unwrap();
        storage.begin_flush().unwrap().unwrap().sync.note(false);
        storage.abandon();
        storage.begin_flush().unwrap_err();
        storage.flush().unwrap_err();
    }
    assert_eq!(synced_clusters(&based.dir.path("layer")), 0);
}

#[test]
fn cluster_is_in_the_layer_when_the_write_under_way_has_ended() {
    let based = Based::new();
    let config = DiskConfig { layer_size: Some(CLUSTER), ..based.layer("layer") };
    let mut storage = Block::open(&config).unwrap().storage;
    let (at, len) = (CLUSTER + 512, 512);
    let before = storage.place(at, len);
    for fails in [true, false] {
        let place = storage.begin_write(at, len).unwrap().unwrap();
        assert!(storage.is_arriving(CLUSTER, 512) && !storage.is_arriving(CLUSTER - 512, 512));
        assert_eq!(storage.place(at, len), before, "reads find what lies below");
        storage.begin_write(0, 512).unwrap_err(); // no room for another
        let done = if fails { Err(std::io::ErrorKind::Other.into()) } else { Ok(()) };
        assert_eq!(storage.end_write(at, len, done).is_err(), fails);
        assert!(!storage.is_arriving(CLUSTER, CLUSTER));
        assert_eq!(storage.place(at, len) == Some(place), !fails);
    }
}

/// A driver that has no flush is told of nothing that could still be lost.
#[test]
fn zeros_and_discards_of_a_driver_without_flush_are_synced_before_it_is_told() {
    on_both_engines(|engine| {
        let based = Based::new();
        let config = DiskConfig { engine, ..based.layer("layer") };
        let zeroes = feature::TRANSPORT | 1 << VIRTIO_BLK_F_WRITE_ZEROES;
        let mut driver = Driver::with_features(Block::open(&config).unwrap(), zeroes);
        for (cluster, unmap) in [(0, false), (1, true)] {
            let sector = cluster * CLUSTER / SECTOR;
            assert_eq!(write_zeroes(&mut driver, sector, (CLUSTER / SECTOR) as u32, unmap), DONE);
            assert_eq!(synced_clusters(&based.dir.path("layer")), cluster as u32 + 1);
        }
    });
}
