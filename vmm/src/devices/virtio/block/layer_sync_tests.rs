//! Tests of the order in which a layer and the files around it are synced, and of failed syncs.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;
use virtio_bindings::virtio_blk::VIRTIO_BLK_F_WRITE_ZEROES;

use super::super::super::Block;
use super::super::super::medium::Medium;
use super::super::super::request::{DiskRange, SECTOR};
use super::super::super::storage::PendingFlush;
use super::super::super::testing::{DONE, flush, on_both_engines, read, start, write, write_zeroes};
use super::crash::killed;
use super::{LEN, LayerFixture};
use crate::config::FileRef;
use crate::config::devices::DiskConfig;
use crate::devices::virtio::block::cluster_map::CLUSTER;
use crate::devices::virtio::feature;
use crate::devices::virtio::testing::Driver;
use crate::error::report;
use crate::testing::{apart, limited, refuse_calls};

/// Lower files may still be in the page cache only: a copy that was just made, or the layer of a VM that has
/// just ended.
#[test]
fn first_flush_needs_the_files_below_to_be_synced() {
    let based = LayerFixture::new();
    drop(start(&based.layer("below")));
    let over = based.over("below", "over");
    drop(start(&over));
    apart({
        let over = over.clone();
        move || {
            refuse_calls(&[libc::SYS_fdatasync, libc::SYS_fsync], libc::EIO);
            let mut storage = Block::open(&over).expect("a restore syncs nothing").storage;
            storage.begin_flush().unwrap_err();
            storage.flush().unwrap_err();
            let base = storage.overlay().unwrap().lower.base();
            base[0].syncs().check().expect_err("the base was to be synced");
        }
    });
    let mut storage = Block::open(&over).unwrap().storage;
    storage.begin_flush().unwrap().unwrap().sync.record(true);
    apart(move || {
        refuse_calls(&[libc::SYS_fdatasync, libc::SYS_fsync], libc::EIO);
        assert!(storage.begin_flush().unwrap().is_some(), "once is enough");
    });
}

#[test]
fn orderly_end_syncs_the_map_that_it_writes() {
    let based = LayerFixture::new();
    let mut storage = Block::open(&based.layer("layer")).unwrap().storage;
    storage.write_zeroes(zero(0)).unwrap();
    storage.settle().unwrap();
    let syncs = storage.overlay().unwrap().layer.syncs().begun();
    assert_eq!(syncs, 2, "one for the data and one for the map");
}

/// A read-only image may have been made a moment ago, like a base.
#[test]
fn snapshot_needs_every_file_that_it_does_not_copy_to_be_synced() {
    let based = LayerFixture::new();
    let read_only = DiskConfig { read_only: true, ..raw(&based) };
    for config in [raw(&based), read_only, based.layer("layer"), based.over("layer", "over")] {
        let disk = Block::open(&config).unwrap();
        let begun = |disk: &Block| -> Vec<u64> {
            let overlay = disk.storage.overlay();
            let layered =
                overlay.into_iter().flat_map(|overlay| overlay.lower.base().iter().chain([&overlay.layer]));
            layered.chain(disk.storage.image()).map(|file| file.syncs().begun()).collect()
        };
        let before = begun(&disk);
        disk.files().unwrap().sync().unwrap();
        assert!(before.iter().zip(begun(&disk)).all(|(before, after)| *before + 1 == after), "each of them");
        apart(move || {
            refuse_calls(&[libc::SYS_fsync], libc::EIO);
            disk.files().unwrap().sync().unwrap_err();
        });
    }
}

/// A nameless layer has no live map and costs no sync. Its descriptor sees all writes.
#[test]
fn layer_without_a_name_is_never_synced_and_has_no_live_map() {
    let based = LayerFixture::new();
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

/// The process that made the layer may have been killed before a flush.
#[test]
fn first_flush_of_an_existing_layer_syncs_its_directory_once() {
    let based = LayerFixture::new();
    drop(start(&based.layer("layer")));
    let config = based.layer("layer");
    apart(move || {
        let mut storage = Block::open(&config).unwrap().storage;
        storage.flush().unwrap();
        refuse_calls(&[libc::SYS_fsync], libc::EIO);
        storage.flush().expect("once is enough");
        let mut storage = {
            drop(storage);
            Block::open(&config).unwrap().storage
        };
        storage.begin_flush().unwrap_err();
        storage.flush().unwrap_err();
    });
}

/// The kernel reports the failure once, and a flush that could not begin on io_uring is executed at once.
#[test]
fn failed_sync_of_a_directory_fails_every_later_flush() {
    let based = LayerFixture::new();
    let storage = Arc::new(Mutex::new(Block::open(&based.layer("layer")).unwrap().storage));
    apart({
        let storage = Arc::clone(&storage);
        move || {
            refuse_calls(&[libc::SYS_fsync], libc::EIO);
            storage.lock().unwrap().begin_flush().expect_err("the directory is not synced");
        }
    });
    for _ in 0..2 {
        storage.lock().unwrap().begin_flush().unwrap_err();
        let why = storage.lock().unwrap().flush().unwrap_err().to_string();
        assert!(why.contains("an earlier sync failed"), "{why}");
    }
}

#[test]
fn layer_whose_directory_was_moved_is_flushed() {
    on_both_engines(|engine| {
        let based = LayerFixture { engine, ..LayerFixture::new() };
        let (there, moved) = (based.dir.path("there"), based.dir.path("moved"));
        fs::create_dir(&there).unwrap();
        let mut driver = start(&based.layer("there/layer"));
        assert_eq!(write(&mut driver, 1, &[1; 512]), DONE);
        fs::rename(&there, &moved).unwrap();
        assert_eq!(flush(&mut driver), DONE);
        assert_eq!(synced_clusters(&moved.join("layer")), 1);
    });
}

/// A directory of mode 0711 cannot be opened by a user who does not own it.
#[test]
fn layer_in_a_directory_that_cannot_be_read_is_flushed() {
    let based = LayerFixture::new();
    let directory = based.dir.path("directory");
    fs::create_dir(&directory).unwrap();
    drop(start(&based.layer("directory/layer")));
    fs::set_permissions(directory.join("layer"), PermissionsExt::from_mode(0o666)).unwrap();
    fs::set_permissions(&directory, PermissionsExt::from_mode(0o311)).unwrap();
    let config = based.layer("directory/layer");
    apart({
        let directory = directory.clone();
        move || {
            if geteuid().is_root() {
                let nobody = Uid::from_raw(65534);
                set_thread_res_uid(nobody, nobody, nobody).unwrap();
            }
            fs::read_dir(&directory).expect_err("the directory is readable");
            let mut storage = Block::open(&config).unwrap().storage;
            storage.write_zeroes(zero(0)).unwrap();
            storage.flush().unwrap();
            let mut storage = {
                drop(storage);
                Block::open(&config).unwrap().storage
            };
            // syncfs would report the errors of other files, and wait for the writes of others.
            refuse_calls(&[libc::SYS_syncfs], libc::EIO);
            storage.flush().unwrap();
            let mut storage = {
                drop(storage);
                Block::open(&config).unwrap().storage
            };
            refuse_calls(&[libc::SYS_fsync], libc::EIO);
            storage.begin_flush().expect_err("the layer is synced in place of its directory");
            storage.flush().unwrap_err();
        }
    });
    assert_eq!(synced_clusters(&directory.join("layer")), 1);
    // Its owner, without root, could not remove it otherwise.
    fs::set_permissions(&directory, PermissionsExt::from_mode(0o700)).unwrap();
}

/// The map promises that the layer's data is on disk, and nothing about the files around the layer.
#[test]
fn map_is_written_though_what_lies_around_the_layer_cannot_be_synced() {
    let based = LayerFixture::new();
    let layer = based.dir.path("layer");
    apart({
        let config = based.layer("layer");
        move || {
            let mut storage = Block::open(&config).unwrap().storage;
            refuse_calls(&[libc::SYS_fsync], libc::EIO);
            storage.write_zeroes(zero(0)).unwrap();
            storage.flush().unwrap_err();
        }
    });
    assert_eq!(synced_clusters(&layer), 1, "a flush");
    apart({
        let config = based.layer("layer");
        move || {
            let mut storage = Block::open(&config).unwrap().storage;
            refuse_calls(&[libc::SYS_fsync], libc::EIO);
            storage.write_zeroes(zero(1)).unwrap();
            storage.settle().expect_err("the directory is not synced");
        }
    });
    assert_eq!(synced_clusters(&layer), 2, "an orderly end");
    let mut storage = Block::open(&based.layer("layer")).unwrap().storage;
    storage.overlay().unwrap().lower.base()[0].syncs().refuse();
    storage.write_zeroes(zero(2)).unwrap();
    storage.settle().expect_err("a sync of the base failed");
    assert_eq!(synced_clusters(&layer), 3, "a base that cannot be synced");
}

fn synced_clusters(layer: &Path) -> u32 {
    fs::read(layer).unwrap()[4096..8192].iter().map(|byte| byte.count_ones()).sum()
}

fn zero(cluster: u64) -> DiskRange {
    DiskRange { at: cluster * CLUSTER, len: CLUSTER, unmap: true }
}

/// Returns a layer with one cluster, and a flush of it in progress.
fn flushing() -> (LayerFixture, Medium, PendingFlush) {
    let based = LayerFixture::new();
    let mut storage = Block::open(&based.layer("layer")).unwrap().storage;
    storage.write_zeroes(zero(0)).unwrap();
    let flush = storage.begin_flush().unwrap().unwrap();
    (based, storage, flush)
}

#[test]
fn flush_writes_the_map_after_the_data_is_synced_and_ends_after_another_sync() {
    let (based, mut storage, mut first) = flushing();
    let layer = based.dir.path("layer");
    // The first flush must not write this cluster: its sync may have begun before.
    storage.write_zeroes(zero(1)).unwrap();
    assert_eq!(synced_clusters(&layer), 0);
    assert!(storage.sync_done(&mut first, Ok(())).unwrap(), "the map is not on disk yet");
    assert_eq!(synced_clusters(&layer), 1);
    assert!(!storage.sync_done(&mut first, Ok(())).unwrap());
    let mut second = storage.begin_flush().unwrap().unwrap();
    assert!(storage.sync_done(&mut second, Ok(())).unwrap());
    assert!(!storage.sync_done(&mut second, Ok(())).unwrap());
    let mut without_new_clusters = storage.begin_flush().unwrap().unwrap();
    assert!(!storage.sync_done(&mut without_new_clusters, Ok(())).unwrap(), "one sync is enough");
    assert_eq!(synced_clusters(&layer), 2);
}

/// An abandoned flush took blocks of the map, which the next one writes.
#[test]
fn flush_after_an_abandoned_one_loses_no_cluster() {
    let (based, mut storage, mut first) = flushing();
    let layer = based.dir.path("layer");
    first.sync.record(true);
    storage.abandon();
    storage.write_zeroes(zero(1)).unwrap();
    let mut second = storage.begin_flush().unwrap().unwrap();
    assert_eq!(synced_clusters(&layer), 0);
    assert!(storage.sync_done(&mut second, Ok(())).unwrap());
    assert_eq!(synced_clusters(&layer), 2);
    // Abandoned before the map was synced, so the next flush syncs after it was written.
    second.sync.record(true);
    let mut third = storage.begin_flush().unwrap().unwrap();
    assert!(!storage.sync_done(&mut third, Ok(())).unwrap());
}

/// The kernel counts the pages that it could not write as written.
#[test]
fn failed_sync_fails_every_later_flush_and_leaves_the_synced_map_as_it_is() {
    let (based, mut storage, mut flush) = flushing();
    storage.sync_done(&mut flush, Err(std::io::ErrorKind::Other.into())).unwrap_err();
    storage.begin_flush().expect_err("it is done at once, and tells why it fails");
    let why = storage.flush().unwrap_err().to_string();
    assert!(why.contains("an earlier sync failed"), "{why}");
    storage.settle().unwrap_err();
    assert_eq!(synced_clusters(&based.dir.path("layer")), 0);
}

/// The copy would have what the host has left, and be restored as if nothing were lost.
#[test]
fn layer_is_not_copied_after_a_failed_sync() {
    let based = LayerFixture::new();
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

/// The next process would count clusters of the live map as written, and sync what is left of them.
#[test]
fn layer_is_opened_after_a_failed_sync_as_after_a_power_cut() {
    let (based, mut storage, mut flush) = flushing();
    let layer = based.dir.path("layer");
    while storage.sync_done(&mut flush, Ok(())).unwrap() {}
    storage.write_zeroes(zero(1)).unwrap();
    storage.begin_flush().unwrap().unwrap().sync.end(Err(std::io::ErrorKind::Other.into())).unwrap_err();
    storage.write_zeroes(zero(2)).unwrap();
    drop(storage);
    let config = based.layer("layer");
    let mut reader = start(&DiskConfig { read_only: true, ..config.clone() });
    let expected = [&[0; CLUSTER as usize], &based.content[CLUSTER as usize..LEN]].concat();
    assert!(read(&mut reader, 0, LEN).unwrap() == expected, "only what was flushed before");
    drop(reader);
    // The identity of a layer over it covers only the flushed clusters, too.
    drop(start(&based.over("layer", "over")));
    let mut storage = Block::open(&config).unwrap().storage;
    storage.flush().unwrap();
    assert_eq!(synced_clusters(&layer), 1);
    // Later writes survive a kill of the process as before.
    storage.write_zeroes(zero(3)).unwrap();
    let left = killed(&based);
    assert!(read(&mut start(&left), 3 * CLUSTER / SECTOR, 512).unwrap() == [0; 512]);
}

fn raw(based: &LayerFixture) -> DiskConfig {
    let image = based.dir.file("raw", &[0; CLUSTER as usize]);
    DiskConfig { path: image.into(), layer: None, ..based.layer("none") }
}

/// The kernel reports a failed writeback to one of two concurrent syncs.
#[test]
fn failed_sync_fails_the_flush_in_progress_beside_it() {
    let based = LayerFixture::new();
    for config in [raw(&based), based.layer("layer")] {
        let mut storage = Block::open(&config).unwrap().storage;
        let [mut first, mut second] = [(); 2].map(|()| storage.begin_flush().unwrap().unwrap());
        storage.sync_done(&mut first, Err(std::io::ErrorKind::Other.into())).unwrap_err();
        let why = storage.sync_done(&mut second, Ok(())).unwrap_err().to_string();
        assert!(why.contains("an earlier sync failed"), "{why}");
    }
}

/// A flush's completion may wait in io_uring while a snapshot's sync succeeds.
#[test]
fn snapshots_sync_fails_with_a_flush_whose_failure_is_not_recorded_yet() {
    let based = LayerFixture::new();
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
            disk.storage.sync_done(&mut flush, Err(std::io::ErrorKind::Other.into())).unwrap_err();
            limited("the snapshot's sync ends", || snapshot.join().unwrap())
        });
        synced.unwrap_err();
    }
}

/// The kernel reports the failure only once, so the next driver's flush would succeed.
#[test]
fn failed_sync_of_an_abandoned_flush_fails_every_later_flush() {
    let based = LayerFixture::new();
    for config in [raw(&based), based.layer("layer")] {
        let mut storage = Block::open(&config).unwrap().storage;
        storage.write_zeroes(zero(0)).unwrap();
        storage.begin_flush().unwrap().unwrap().sync.record(false);
        storage.abandon();
        storage.begin_flush().unwrap_err();
        storage.flush().unwrap_err();
    }
    assert_eq!(synced_clusters(&based.dir.path("layer")), 0);
}

/// A driver without flush sees no completion of a write that could still be lost.
#[test]
fn zeros_and_discards_of_a_driver_without_flush_are_synced_before_completion() {
    on_both_engines(|engine| {
        let based = LayerFixture::new();
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
