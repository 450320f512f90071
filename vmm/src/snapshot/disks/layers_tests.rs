//! Where layers are found, and their copies.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};

use super::*;
use crate::devices::virtio::block::cluster_map::BaseIdentity;
use crate::testing::{ScratchDir, apart, refuse_calls};

const BASE: BaseIdentity = BaseIdentity { len: 3 << 30, digest: 7 };
/// In two blocks of the map.
const CLUSTERS: [u64; 2] = [1, 40_000];

fn in_memory() -> File {
    rustix::fs::memfd_create("layer", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into()
}

/// A layer over [`BASE`] with [`CLUSTERS`], which are full of their numbers.
fn layer() -> File {
    let file = in_memory();
    let mut map = ClusterMap::make(&file, BASE, false).unwrap();
    for cluster in CLUSTERS {
        file.write_all_at(&[cluster as u8; CLUSTER as usize], map.data() + cluster * CLUSTER).unwrap();
        map.include(cluster..cluster + 1);
    }
    map.write_copy(&file).unwrap();
    file
}

/// Whether a file is a copy of [`layer`]; false if it is empty, or unfinished.
fn is_whole(file: &File) -> bool {
    let map = match ClusterMap::load_any(file).unwrap() {
        Ok(map) => map,
        Err(problem) => {
            assert!(ClusterMap::is_unfinished(file, BASE).unwrap(), "{problem}");
            return false;
        }
    };
    let mut data = vec![0; CLUSTER as usize];
    for cluster in CLUSTERS {
        file.read_exact_at(&mut data, map.data() + cluster * CLUSTER).unwrap();
        assert!(data == [cluster as u8; CLUSTER as usize], "the map has clusters whose data is lost");
    }
    assert!(map.present(0..BASE.len / CLUSTER).eq(CLUSTERS.map(|cluster| cluster..cluster + 1)));
    true
}

/// At each sync, for each choice of the blocks that were written before it and reached the disk.
#[test]
fn copied_layer_is_whole_or_empty_after_a_power_cut() {
    let (from, to) = (layer(), in_memory());
    let given = FileRef::Fd(from.as_raw_fd());
    let data = ClusterMap::load_any(&from).unwrap().unwrap().data();
    let clusters = CLUSTERS.map(|cluster| (data + cluster * CLUSTER, CLUSTER));
    let blocks = [&[(0, 4096), (4096, 4096), (8192, 4096)][..], &clusters].concat();
    let bytes = || -> Vec<Vec<u8>> {
        let read = |(at, len): &(u64, u64)| {
            let mut bytes = vec![0; *len as usize];
            to.read_exact_at(&mut bytes, *at).unwrap();
            bytes
        };
        blocks.iter().map(read).collect()
    };
    let left = |on_disk: &[Vec<u8>]| {
        let file = in_memory();
        file.set_len(to.metadata().unwrap().len()).unwrap();
        blocks.iter().zip(on_disk).for_each(|((at, _), bytes)| file.write_all_at(bytes, *at).unwrap());
        is_whole(&file)
    };
    let synced = RefCell::new(blocks.iter().map(|(_, len)| vec![0; *len as usize]).collect::<Vec<_>>());
    let sync = || {
        let written = bytes();
        for chosen in 0..1 << blocks.len() {
            let reached = |(number, before): (usize, &Vec<u8>)| match chosen >> number & 1 {
                0 => before.clone(),
                _ => written[number].clone(),
            };
            left(&synced.borrow().iter().enumerate().map(reached).collect::<Vec<_>>());
        }
        *synced.borrow_mut() = written;
        Ok(())
    };
    copy_in_steps(&given, &to, &Progress::default(), sync).unwrap();
    assert!(left(&synced.borrow()), "the fork has ended, and its copy is whole");
    assert!(bytes() == *synced.borrow());
    let named = |file| ClusterMap::load_any(file).unwrap().unwrap().identity();
    assert_ne!(named(&to), named(&from), "its id is its own");
}

#[test]
fn copied_layer_is_no_layer_before_its_data_is_synced() {
    let scratch = ScratchDir::new();
    let place = scratch.join("layer");
    let (from, to) = (layer(), create(&place).unwrap());
    apart(move || {
        refuse_calls(&[libc::SYS_fdatasync, libc::SYS_fsync], libc::EIO);
        copy_layer(&FileRef::Fd(from.as_raw_fd()), &to, &Progress::default())
            .expect_err("the host cannot sync it");
        assert!(!is_whole(&to));
        to.set_len(0).unwrap();
        // Without a name it is gone after a power cut, and not worth the wait.
        fs::remove_file(place).unwrap();
        copy_layer(&FileRef::Fd(from.as_raw_fd()), &to, &Progress::default()).unwrap();
        assert!(is_whole(&to));
    });
}

#[test]
fn cancelled_copy_is_no_layer() {
    let (from, to) = (layer(), in_memory());
    let from = FileRef::Fd(from.as_raw_fd());
    let progress = Progress::cancelling_at(1);
    assert!(copy_layer(&from, &to, &progress).is_err() && progress.check().is_err());
    assert!(!is_whole(&to) && progress.done() < progress.total(), "{progress:?}");
    to.set_len(0).unwrap();
    let progress = Progress::default();
    copy_layer(&from, &to, &progress).unwrap();
    assert!(is_whole(&to) && progress.done() == progress.total(), "{progress:?}");
}

#[test]
fn layer_that_is_replaced_by_a_link_after_it_was_found_is_not_followed() {
    let place = ScratchDir::new();
    let (layer, secret) = (place.join("disk-root.layer"), place.join("secret"));
    fs::write(&layer, "layer").unwrap();
    fs::write(&secret, "secret").unwrap();
    let source = LayerFiles::Directory(place.to_owned());
    let found = source.find("root").unwrap();
    assert_eq!(found.to_string(), layer.to_str().unwrap());
    fs::remove_file(&layer).unwrap();
    symlink(&secret, &layer).unwrap();
    assert_eq!(std::io::read_to_string(found.open("open layer").unwrap()).unwrap(), "layer");
    let error = source.find("root").unwrap_err().to_string();
    assert!(error.contains("disk-root.layer: is not a regular file"), "{error}");
    assert!(source.find("other").unwrap_err().to_string().contains("is missing"));
}

#[test]
fn carried_layers_are_counted_and_cancelled_midway() {
    let scratch = ScratchDir::new();
    let place = scratch.join("new");
    let disk = serde_json::json!({"id": "root", "path": "/root", "layer": "/layer"});
    let disks = vec![serde_json::from_value(disk).unwrap()];
    let devices = Devices { disks, ..Devices::default() };
    let from = LayerFiles::Held(BTreeMap::from([("root".to_owned(), layer())]));
    let carry = |progress: &Progress| {
        let dir = NewDir::begin(&place).unwrap();
        from.carry(&devices, &BTreeMap::new(), &dir, progress)
    };
    let progress = Progress::default();
    assert_eq!(carry(&progress).unwrap().len(), 1);
    assert!(progress.total() >= 2 * CLUSTER && progress.done() == progress.total(), "{progress:?}");
    let progress = Progress::cancelling_at(1);
    assert!(matches!(carry(&progress), Err(Error::Cancelled)));
}
