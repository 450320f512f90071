//! Tests of the content of a layer after a kill of the process, a crash of the host, and an orderly end.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustix::fs::{FallocateFlags, fallocate};

use super::super::super::Block;
use super::super::super::live_map::pretend_reboot;
use super::super::super::request::DiskRange;
use super::super::super::testing::{
    DONE, Random, SmallTmpfs, TestDir, disk_on, flush, on_both_engines, read, start, write, write_zeroes,
};
use super::{LEN, LayerFixture, scribble};
use crate::config::devices::{Cache, DiskConfig, Engine};
use crate::devices::virtio::block::cluster_map::CLUSTER;
use crate::devices::virtio::feature;
use crate::devices::virtio::testing::{Driver, MEMORY};
use crate::memory::backing::Backing;
use crate::memory::ram::GuestRam;
use crate::testing::{apart, refuse_calls};

/// Bytes of a live map of these bases at the end of a layer's file.
pub(super) const LIVE_LEN: usize = 4096 + 4096;

/// Returns a disk on a copy of the layer's file, as a killed process leaves it.
pub(super) fn killed(based: &LayerFixture) -> DiskConfig {
    fs::copy(based.dir.path("layer"), based.dir.path("left")).unwrap();
    based.layer("left")
}

/// Returns a disk on a copy of the layer's file, as a crash of the host leaves it if all of the file was
/// written: only synced clusters count.
pub(super) fn crashed(based: &LayerFixture) -> DiskConfig {
    let left = killed(based);
    reboot(&based.dir.path("left"));
    left
}

/// Changes a layer's live map to one of another boot.
pub(super) fn reboot(layer: &Path) {
    let file = fs::File::options().read(true).write(true).open(layer).unwrap();
    let mut id = [0; 8];
    file.read_exact_at(&mut id, 40 - 8).unwrap();
    let at = file.metadata().unwrap().len() - LIVE_LEN as u64;
    pretend_reboot(&file, at, u64::from_le_bytes(id));
}

#[test]
fn host_crash_takes_nothing_that_was_flushed() {
    on_both_engines(|engine| {
        let based = LayerFixture { engine, ..LayerFixture::new() };
        let mut driver = start(&based.layer("layer"));
        assert_eq!(write(&mut driver, 1, &[1; 512]), DONE);
        assert_eq!(flush(&mut driver), DONE);
        assert_eq!(write(&mut driver, 300, &[2; 512]), DONE);
        let mut after = start(&crashed(&based));
        assert_eq!(read(&mut after, 1, 512).unwrap(), [1; 512]);
        assert!(read(&mut after, 300, 512).unwrap() == based.content[300 * 512..301 * 512]);
        // Data of the lost write stays invisible to reads of zeros and of the base's bytes.
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
            let based = LayerFixture { engine, ..LayerFixture::new() };
            let mut model = based.content[..LEN].to_vec();
            let mut driver = start(&DiskConfig { cache, ..based.layer("layer") });
            scribble(&mut driver, &mut model, &mut Random(40), 3);
            let left = killed(&based);
            assert!(read(&mut start(&left), 0, LEN).unwrap() == model, "{cache:?}");
            // A reader finds the same content, and writes nothing.
            let before = fs::read(based.dir.path("left")).unwrap();
            let mut reader = start(&DiskConfig { read_only: true, ..left });
            assert!(read(&mut reader, 0, LEN).unwrap() == model, "{cache:?}");
            drop(reader);
            assert!(fs::read(based.dir.path("left")).unwrap() == before);
        }
    });
}

/// Clusters of the live map are in the synced map after the next flush, and after the next orderly end.
#[test]
fn clusters_of_a_killed_process_survive_a_reboot_once_they_were_taken_over() {
    for ends in [false, true] {
        let based = LayerFixture::new();
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

/// The upper layer's identity covers all clusters of the lower layer, so these must count after a reboot,
/// too.
#[test]
fn layer_over_one_of_a_killed_process_is_opened_after_a_reboot() {
    on_both_engines(|engine| {
        let based = LayerFixture { engine, ..LayerFixture::new() };
        let mut driver = start(&based.layer("layer"));
        assert_eq!(write(&mut driver, 1, &[1; 512]), DONE);
        killed(&based);
        drop(driver);
        let over = based.over("left", "over");
        // A read-only disk is content with the live map, and writes nothing.
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

/// The data is synced before the map, and both before they are read.
#[test]
fn layer_of_a_killed_process_is_synced_before_its_map_and_after() {
    let based = LayerFixture::new();
    let mut driver = start(&based.layer("layer"));
    assert_eq!(write(&mut driver, 1, &[1; 512]), DONE);
    killed(&based);
    drop(driver);
    let (over, left) = (based.over("left", "over"), based.dir.path("left"));
    let before = fs::read(&left).unwrap();
    let (refused, unwritten) = (over.clone(), left.clone());
    apart(move || {
        refuse_calls(&[libc::SYS_fdatasync], libc::EIO);
        Block::open(&refused).unwrap_err();
        assert!(fs::read(&unwritten).unwrap() == before, "a map was written before its data was synced");
    });
    let block = Block::open(&over).unwrap();
    let below = block.storage.overlay().unwrap().lower.files().last().unwrap();
    assert_eq!(below.syncs().begun(), 2, "one for the data and one for the map");
}

/// Bits of an earlier boot do not count beside bits of this boot.
#[test]
fn live_map_starts_empty_after_a_reboot() {
    let based = LayerFixture::new();
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
    let based = LayerFixture::new();
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
            let based = LayerFixture { engine, ..LayerFixture::new() };
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

/// Made by volt-vmm f290a97: 3 sectors of ones to threes in the only cluster of a base of 4 KiB of sevens.
fn layer_of_version_1(based: &LayerFixture) -> DiskConfig {
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
    let based = LayerFixture::new();
    let config = layer_of_version_1(&based);
    let path = based.dir.path("old");
    let old = fs::read(&path).unwrap();
    let mut expected = vec![7; 4096];
    (1..4).for_each(|sector| expected[sector * 512..][..512].fill(sector as u8));
    let mut reader = start(&DiskConfig { read_only: true, ..config.clone() });
    assert!(read(&mut reader, 0, 4096).unwrap() == expected);
    drop(reader);
    assert!(fs::read(&path).unwrap() == old);
    // It lies below other layers as before, and its identity has not changed.
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

#[test]
fn rewind_that_fails_midway_leaves_no_zeros() {
    let Some(small) = SmallTmpfs::mount() else { return crate::testing::skip("mounting a tmpfs takes root") };
    let dir = TestDir::new();
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
    // There is room for the header of the new layer, and not for its maps.
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

/// No sync failed, so clusters that only the live map has still count.
#[test]
fn rewind_that_cannot_truncate_the_layer_leaves_all_that_was_written() {
    let based = LayerFixture::new();
    let config = based.layer("layer");
    apart(move || {
        let mut storage = Block::open(&config).unwrap().storage;
        storage.write_zeroes(DiskRange { at: 0, len: CLUSTER, unmap: true }).unwrap();
        refuse_calls(&[libc::SYS_ftruncate], libc::EIO);
        storage.empty().unwrap_err();
        storage.flush().expect_err("it is not known what is left");
    });
    assert_eq!(read(&mut start(&based.layer("layer")), 1, 512).unwrap(), [0; 512]);
}

#[test]
fn writes_do_not_ask_for_the_length_of_the_file() {
    let based = LayerFixture::new();
    let image = based.dir.file("image", &[7; 16 * 512]);
    for config in [disk_on(Engine::Sync, &image), based.layer("layer")] {
        let mut storage = Block::open(&config).unwrap().storage;
        storage.write_zeroes(DiskRange { at: 0, len: 16 * 512, unmap: true }).unwrap();
        apart(move || {
            refuse_calls(&[libc::SYS_fstat, libc::SYS_newfstatat, libc::SYS_statx], libc::EIO);
            let mut write = |at| {
                let begun = storage.begin_write(at, 512).unwrap();
                assert!(begun.is_some(), "io_uring takes it");
                storage.end_write(at, 512, Ok(())).unwrap();
                storage.write_zeroes(DiskRange { at, len: 512, unmap: true })
            };
            (0..100).for_each(|number| write(number % 16 * 512).unwrap());
            // The device looks at the length again from time to time.
            storage.forget_len();
            storage.write_zeroes(DiskRange { at: 0, len: 512, unmap: true }).unwrap_err();
        });
    }
}

#[test]
fn cluster_is_in_the_layer_when_the_write_under_way_has_ended() {
    let based = LayerFixture::new();
    let config = DiskConfig { layer_size: Some(CLUSTER), ..based.layer("layer") };
    let mut storage = Block::open(&config).unwrap().storage;
    let (at, len) = (CLUSTER + 512, 512);
    let before = storage.locate(at, len);
    for fails in [true, false] {
        let location = storage.begin_write(at, len).unwrap().unwrap();
        assert!(storage.is_pending(CLUSTER, 512) && !storage.is_pending(CLUSTER - 512, 512));
        assert_eq!(storage.locate(at, len), before, "reads find the lower files");
        storage.begin_write(0, 512).unwrap_err(); // no room for another
        let done = if fails { Err(std::io::ErrorKind::Other.into()) } else { Ok(()) };
        assert_eq!(storage.end_write(at, len, done).is_err(), fails);
        assert!(!storage.is_pending(CLUSTER, CLUSTER));
        assert_eq!(storage.locate(at, len) == Some(location), !fails);
    }
}

/// The file's length may reach the disk before its header does.
#[test]
fn layer_that_a_power_cut_left_without_its_header_is_an_empty_layer() {
    let based = LayerFixture::new();
    drop(start(&based.layer("layer")));
    let path = based.dir.path("layer");
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    let len = file.metadata().unwrap().len();
    for left in [len, len - LIVE_LEN as u64] {
        file.set_len(0).unwrap();
        file.set_len(left).unwrap();
        // A file that is only read is not written.
        Block::open(&DiskConfig { read_only: true, ..based.layer("layer") }).unwrap_err();
        let mut driver = start(&based.layer("layer"));
        assert!(read(&mut driver, 0, LEN).unwrap() == based.content[..LEN]);
    }
    // A copy without its header is an empty layer, too, whatever its map has.
    file.set_len(0).unwrap();
    file.set_len(len).unwrap();
    file.write_all_at(b"VOLTCOPY", 0).unwrap();
    file.write_all_at(&[1], 4096).unwrap();
    assert!(read(&mut start(&based.layer("layer")), 0, LEN).unwrap() == based.content[..LEN]);
    // Another file is not a layer.
    for (len, at) in [(len - 1, None), (len, Some(100)), (len, Some(4096))] {
        file.set_len(0).unwrap();
        file.set_len(len).unwrap();
        at.into_iter().for_each(|at| file.write_all_at(&[1], at).unwrap());
        Block::open(&based.layer("layer")).unwrap_err();
    }
}
