//! Tests of layers with a limited size.

use std::fs;
use std::os::unix::fs::MetadataExt;

use super::super::super::Block;
use super::super::super::request::DiskRange;
use super::super::super::testing::{
    DISCARD, DONE, FAILED, OUT, discard, flush, header, on_both_engines, read, segment, start, status, write,
    write_zeroes,
};
use super::{LEN, LayerFixture};
use crate::config::devices::DiskConfig;
use crate::devices::virtio::block::cluster_map::CLUSTER;
use crate::devices::virtio::testing::Part;
use crate::testing::{apart, refuse_calls};

/// Sectors of a cluster.
const SECTORS: u64 = CLUSTER / 512;

/// A guest sees an I/O error, as from a full disk of the host.
#[test]
fn write_beyond_the_layers_size_fails_and_other_requests_succeed() {
    on_both_engines(|engine| {
        let based = LayerFixture { engine, ..LayerFixture::new() };
        let config = DiskConfig { layer_size: Some(2 * CLUSTER + 5), ..based.layer("layer") };
        let mut driver = start(&config);
        assert_eq!(write(&mut driver, 0, &[1; 512]), DONE);
        let two_more = write(&mut driver, 2 * SECTORS - 1, &[2; 1024]);
        assert_eq!(two_more, FAILED, "there is room for one");
        assert_eq!(write(&mut driver, SECTORS, &[3; 512]), DONE);
        assert_eq!(write_zeroes(&mut driver, 2 * SECTORS, 8, true), FAILED, "a part of a cluster");
        assert_eq!(write(&mut driver, 1, &[4; 512]), DONE, "the layer has the cluster");
        assert_eq!(flush(&mut driver), DONE);
        let mut expected = based.content[..LEN].to_vec();
        for (sector, byte) in [(0, 1), (SECTORS as usize, 3), (1, 4)] {
            expected[sector * 512..][..512].fill(byte);
        }
        assert!(read(&mut driver, 0, LEN).unwrap() == expected);
        drop(driver);
        // The limit counts the clusters of the opened layer, and may grow.
        assert_eq!(write(&mut start(&config), 2 * SECTORS, &[5; 512]), FAILED);
        let more = DiskConfig { layer_size: Some(3 * CLUSTER), ..config };
        assert_eq!(write(&mut start(&more), 2 * SECTORS, &[5; 512]), DONE);
        let blocks = fs::metadata(based.dir.path("layer")).unwrap().blocks() * 512;
        assert!(blocks <= 5 * CLUSTER, "{blocks}: three clusters, and the maps");
    });
}

#[test]
fn zeros_and_discards_take_nothing_of_the_layers_size_and_give_it_back() {
    on_both_engines(|engine| {
        let based = LayerFixture { engine, ..LayerFixture::new() };
        let config = DiskConfig { layer_size: Some(CLUSTER), ..based.layer("layer") };
        let mut driver = start(&config);
        let mut expected = based.content[..LEN].to_vec();
        assert_eq!(write(&mut driver, 0, &[1; 512]), DONE);
        expected[..512].fill(1);
        // The layer is full. Whole clusters become zeros; parts of others keep their bytes.
        let whole = CLUSTER as usize..3 * CLUSTER as usize;
        assert_eq!(discard(&mut driver, SECTORS - 8, 2 * SECTORS as u32 + 16), DONE);
        expected[whole.start - 8 * 512..whole.end].fill(0);
        assert!(read(&mut driver, 0, LEN).unwrap() == expected);
        assert_eq!(discard(&mut driver, 3 * SECTORS + 1, 8), DONE);
        assert!(read(&mut driver, 0, LEN).unwrap() == expected);
        assert_eq!(write_zeroes(&mut driver, 3 * SECTORS, SECTORS as u32, false), DONE);
        expected[whole.end..][..CLUSTER as usize].fill(0);
        // The disk ends in a part of a cluster.
        assert_eq!(write_zeroes(&mut driver, 5 * SECTORS, 9, false), DONE);
        expected[5 * CLUSTER as usize..].fill(0);
        assert!(read(&mut driver, 0, LEN).unwrap() == expected);
        // A hole takes space once it is written.
        assert_eq!(write(&mut driver, SECTORS, &[2; 512]), FAILED);
        // A discarded cluster makes room for another.
        assert_eq!(discard(&mut driver, 0, SECTORS as u32), DONE);
        expected[..CLUSTER as usize].fill(0);
        drop(driver);
        let mut driver = start(&config);
        assert_eq!(write(&mut driver, SECTORS, &[2; 512]), DONE);
        expected[CLUSTER as usize..][..512].fill(2);
        assert_eq!(write(&mut driver, 0, &[3; 512]), FAILED);
        assert_eq!(write_zeroes(&mut driver, SECTORS, SECTORS as u32, true), DONE);
        assert_eq!(write(&mut driver, 0, &[3; 512]), DONE);
        expected[CLUSTER as usize..][..512].fill(0);
        expected[..512].fill(3);
        assert!(read(&mut driver, 0, LEN).unwrap() == expected);
        based.assert_untouched();
    });
}

#[test]
fn failed_write_counts_until_its_cluster_is_discarded() {
    let based = LayerFixture::new();
    let config = DiskConfig { layer_size: Some(CLUSTER), ..based.layer("layer") };
    let mut storage = Block::open(&config).unwrap().storage;
    storage.begin_write(0, 512).unwrap().unwrap();
    storage.end_write(0, 512, Err(std::io::ErrorKind::Other.into())).unwrap_err();
    let refused = storage.begin_write(CLUSTER, 512).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC));
    storage.discard(DiskRange { at: 0, len: CLUSTER, unmap: true }).unwrap();
    storage.begin_write(CLUSTER, 512).unwrap().unwrap();
}

#[test]
fn emptied_layer_has_its_size_again() {
    let based = LayerFixture::new();
    let mut block = Block::open(&DiskConfig { layer_size: Some(CLUSTER), ..based.layer("layer") }).unwrap();
    let range = |at| DiskRange { at, len: 512, unmap: true };
    block.storage.write_zeroes(range(0)).unwrap();
    assert_eq!(block.storage.write_zeroes(range(CLUSTER)).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    block.storage.empty().unwrap();
    block.storage.write_zeroes(range(CLUSTER)).unwrap();
}

/// The kernel may still have the write when the discard is done; the write must not land after the discard.
#[test]
fn write_that_is_sent_with_a_discard_of_its_cluster_leaves_a_hole() {
    on_both_engines(|engine| {
        let based = LayerFixture { engine, ..LayerFixture::new() };
        let config = DiskConfig { layer_size: Some(CLUSTER), ..based.layer("layer") };
        let mut driver = start(&config);
        for sector in (0..4).map(|cluster| cluster * SECTORS) {
            assert_eq!(write(&mut driver, sector, &[1; 512]), DONE, "the others are holes");
            let (out, whole) = (header(OUT, sector), segment(sector, SECTORS as u32, 0));
            let write = [Part::Out(&out), Part::Out(&[2; CLUSTER as usize]), Part::In(1)];
            let discard = [Part::Out(&header(DISCARD, 0)), Part::Out(&whole), Part::In(1)];
            driver.send_together(0, &[&write, &discard]);
            (0..2).for_each(|_| assert_eq!(status(&driver.wait(0)), DONE));
            let allocated = fs::metadata(based.dir.path("layer")).unwrap().blocks() * 512;
            assert!(allocated < 3 * CLUSTER, "{allocated} bytes, and the maps take less than a cluster each");
        }
    });
}

/// Written zeros take space on the host, and a discard must not take any.
#[test]
fn zeros_count_where_no_hole_can_be_punched() {
    apart(|| {
        let based = LayerFixture::new();
        let config = DiskConfig { layer_size: Some(2 * CLUSTER), ..based.layer("layer") };
        refuse_calls(&[libc::SYS_fallocate], libc::EOPNOTSUPP);
        let mut storage = Block::open(&config).unwrap().storage;
        let zero = |cluster| DiskRange { at: cluster * CLUSTER, len: CLUSTER, unmap: true };
        storage.write_zeroes(zero(0)).unwrap();
        storage.discard(zero(1)).unwrap();
        storage.write_zeroes(zero(1)).unwrap();
        storage.discard(zero(0)).unwrap();
        let full = storage.write_zeroes(zero(2)).unwrap_err();
        assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
        storage.write_zeroes(zero(0)).unwrap(); // it counts already
    });
}

#[test]
fn clusters_of_the_map_count_where_a_file_shows_no_hole() {
    let based = LayerFixture::new();
    let config = DiskConfig { layer_size: Some(2 * CLUSTER), ..based.layer("layer") };
    let mut driver = start(&config);
    assert_eq!((write(&mut driver, 0, &[1; 512]), flush(&mut driver)), (DONE, DONE));
    drop(driver);
    // A file system without holes reports data from the beginning of the file to its end.
    let layer = based.dir.path("layer");
    fs::write(&layer, fs::read(&layer).unwrap()).unwrap();
    let mut driver = start(&config);
    assert_eq!(write(&mut driver, SECTORS, &[2; 512]), DONE);
    assert_eq!(write(&mut driver, 2 * SECTORS, &[3; 512]), FAILED);
}

/// A guest may discard 16 GiB with one request.
#[test]
fn discard_of_a_layer_without_a_bound_writes_no_zeros_where_there_are_no_holes() {
    let based = LayerFixture::new();
    let config = based.layer("layer");
    let layer = based.dir.path("layer");
    crate::testing::apart(move || {
        let mut storage = Block::open(&config).unwrap().storage;
        let sector = DiskRange { at: 0, len: 512, unmap: true };
        storage.write_zeroes(sector).unwrap(); // copies the rest of the cluster from the base
        let before = fs::read(&layer).unwrap();
        crate::testing::refuse_calls(&[libc::SYS_fallocate], libc::EOPNOTSUPP);
        storage.discard(DiskRange { len: 4 * CLUSTER, ..sector }).unwrap();
        assert!(fs::read(&layer).unwrap() == before, "the discard wrote something");
    });
}
