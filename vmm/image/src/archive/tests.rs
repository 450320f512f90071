//! Images that go from directories and archives through a store.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::json;

use super::testing::{Scratch, archive, config, gzip, layout};
use super::{Loaded, load, save};
use crate::digest;
use crate::erofs;
use crate::error::{Error, Result};
use crate::manifest::Platform;
use crate::store::{Options, Silent, Store};
use crate::testing::{list, stream};
use crate::unpacked::Limits;

const LOW: &[&str] = &["a", "d/b", "gone"];
const HIGH: &[&str] = &["d/c", ".wh.gone", "l -> a"];
const MERGED: [&str; 5] = ["a", "d/", "d/b", "d/c", "l -> a"];

fn store(scratch: &Scratch) -> Store {
    Store::open(scratch.path("store")).unwrap()
}

fn loaded(store: &Store, path: &Path) -> Result<Vec<Loaded>> {
    let platform = "amd64".into();
    let platform = Platform { architecture: platform, ..Platform::default() };
    let is_cancelled = Arc::new(AtomicBool::new(false));
    let options = Options {
        platform: &platform,
        limits: Limits::default(),
        progress: &Silent,
        is_cancelled: &is_cancelled,
    };
    load(store, path, options)
}

/// The files of an image.
fn files_of(store: &Store, name: &str) -> Vec<String> {
    let image = store.image(&store.find(name).unwrap()).unwrap();
    list(&erofs::read(&whole(&image.parts)).unwrap())
}

/// The disk that parts make.
fn whole(parts: &[std::path::PathBuf]) -> fs::File {
    crate::testing::memory(&parts.iter().flat_map(|part| fs::read(part).unwrap()).collect::<Vec<_>>())
}

fn layers_in(store: &Store) -> usize {
    let names = names_in(&store.root().join("layers"));
    assert_eq!(names.len() % 2, 0, "each layer has its stream: {names:?}");
    names.len() / 2
}

fn names_in(directory: &Path) -> Vec<String> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn layout_is_loaded_as_directory_as_archive_and_as_compressed_archive() {
    let scratch = Scratch::new();
    let [directory, plain, packed] = ["image", "image.tar", "image.tar.gz"].map(|name| scratch.path(name));
    layout(&directory, &[LOW, HIGH, LOW], "app:1");
    archive(&directory, &plain);
    fs::write(&packed, gzip(&fs::read(&plain).unwrap())).unwrap();
    for (number, path) in [directory, plain, packed].iter().enumerate() {
        let store = Store::open(scratch.path(&format!("store-{number}"))).unwrap();
        let found = loaded(&store, path).unwrap();
        assert_eq!(found[0].names[0].to_string(), "docker.io/library/app:1");
        // The lowest layer is there twice, and so hides nothing and lies on the disk once.
        let image = store.image(&found[0].id).unwrap();
        assert_eq!((image.record.layers.len(), image.parts.len()), (3, 3));
        assert_eq!(image.config.config().as_ref().unwrap().cmd().as_ref().unwrap(), &["app:1"]);
        let expected = ["a", "d/", "d/b", "d/c", "gone", "l -> a"];
        assert_eq!(files_of(&store, "app:1"), expected);
        assert!(names_in(&store.root().join("partial")).is_empty());
    }
}

#[test]
fn archive_of_docker_is_loaded_with_links_to_equal_layers() {
    let scratch = Scratch::new();
    let (store, directory) = (store(&scratch), scratch.path("image"));
    fs::create_dir_all(directory.join("one")).unwrap();
    fs::create_dir_all(directory.join("two")).unwrap();
    fs::create_dir_all(directory.join("three")).unwrap();
    fs::write(directory.join("one/layer.tar"), stream(LOW)).unwrap();
    fs::write(directory.join("two/layer.tar"), stream(HIGH)).unwrap();
    symlink("../two/layer.tar", directory.join("three/layer.tar")).unwrap();
    fs::write(directory.join("c.json"), config(&[LOW, HIGH, HIGH], "x").to_string()).unwrap();
    let list = json!([{
        "Config": "c.json", "RepoTags": ["app:1", "ghcr.io/me/app:2"],
        "Layers": ["one/layer.tar", "two/layer.tar", "three/layer.tar"],
    }]);
    fs::write(directory.join("manifest.json"), list.to_string()).unwrap();
    let path = scratch.path("docker.tar");
    archive(&directory, &path);
    assert_eq!(loaded(&store, &path).unwrap()[0].names.len(), 2);
    for name in ["app:1", "ghcr.io/me/app:2"] {
        assert_eq!(files_of(&store, name), MERGED);
    }
}

#[test]
fn damaged_image_leaves_nothing() {
    let scratch = Scratch::new();
    let store = store(&scratch);
    let (good, other) = (gzip(&stream(LOW)), gzip(&stream(HIGH)));
    for (case, bytes, problem) in [
        ("replaced", other, "is expected"),
        ("cut", good[..good.len() / 2].to_vec(), "cannot store layer"),
        ("no tar", gzip(&[7; 1000]), "cannot store layer"),
    ] {
        let directory = scratch.path(case);
        layout(&directory, &[LOW], "app:1");
        fs::write(directory.join("blobs/sha256").join(digest::of(&good).digest()), bytes).unwrap();
        let error = loaded(&store, &directory).unwrap_err();
        assert!(error.to_string().contains(problem), "{case}: {error}");
        for directory in ["layers", "images", "partial"] {
            assert!(names_in(&store.root().join(directory)).is_empty(), "{case}: {directory}");
        }
        assert!(matches!(store.find("app:1"), Err(Error::Unknown(_))), "{case}");
    }
}

#[test]
fn configuration_that_names_other_layers_is_refused() {
    let scratch = Scratch::new();
    let (store, directory) = (store(&scratch), scratch.path("image"));
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("low.tar"), stream(LOW)).unwrap();
    let list = json!([{"Config": "c.json", "RepoTags": null, "Layers": ["low.tar"]}]);
    fs::write(directory.join("manifest.json"), list.to_string()).unwrap();
    for (layers, problem) in
        [(&[HIGH][..], "is expected"), (&[LOW, HIGH], "2 layers, and the manifest has 1")]
    {
        fs::write(directory.join("c.json"), config(layers, "x").to_string()).unwrap();
        let error = loaded(&store, &directory).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
    assert!(store.images().unwrap().is_empty());
}

#[test]
fn removal_keeps_names_and_layers_of_others() {
    let scratch = Scratch::new();
    let store = store(&scratch);
    for (name, layers) in [("one:1", &[LOW, HIGH][..]), ("two:1", &[LOW])] {
        layout(&scratch.path(name), layers, name);
        loaded(&store, &scratch.path(name)).unwrap();
    }
    let id = store.find("one:1").unwrap();
    store.name(&"again:1".parse().unwrap(), &id).unwrap();
    assert_eq!(store.find(&id.digest()[..12]).unwrap(), id);
    let nobody = |_: &Path| false;
    let first = store.remove("one:1", nobody).unwrap();
    assert_eq!((first.names.len(), first.images.len(), first.layers), (1, 0, 0));
    assert!(matches!(store.remove("again:1", |_| true), Err(Error::Used(_))));
    assert_eq!(files_of(&store, "again:1"), MERGED);
    let second = store.remove("again:1", nobody).unwrap();
    assert_eq!((second.images, second.layers), (vec![id], 1));
    assert!(second.bytes > 0);
    assert_eq!(files_of(&store, "two:1"), ["a", "d/", "d/b", "gone"]);
    // An image without a name, and what a killed process left.
    store.name(&"two:1".parse().unwrap(), &digest::of(b"another")).unwrap();
    fs::write(store.root().join("partial/left"), "x").unwrap();
    let pruned = store.prune(nobody).unwrap();
    assert_eq!((pruned.images.len(), pruned.layers), (1, 1));
    assert!(names_in(&store.root().join("partial")).is_empty());
    assert!(names_in(&store.root().join("layers")).is_empty());
}

#[test]
fn loads_at_once_make_each_layer_once() {
    let scratch = Scratch::new();
    let (store, directory) = (store(&scratch), scratch.path("image"));
    layout(&directory, &[LOW, HIGH], "app:1");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| loaded(&store, &directory).unwrap());
        }
    });
    assert_eq!(files_of(&store, "app:1"), MERGED);
    assert_eq!(layers_in(&store), 2);
    assert!(names_in(&store.root().join("partial")).is_empty());
}

#[test]
fn saved_images_are_loaded_as_what_they_were() {
    let scratch = Scratch::new();
    let store = store(&scratch);
    for (name, layers) in [("one:1", &[LOW, HIGH][..]), ("ghcr.io/two:1", &[LOW])] {
        layout(&scratch.path(&name.replace('/', "-")), layers, name);
        loaded(&store, &scratch.path(&name.replace('/', "-"))).unwrap();
    }
    let images = ["one:1", "ghcr.io/two:1"].map(|name| {
        let id = store.find(name).unwrap();
        (store.image(&id).unwrap(), vec![name.parse().unwrap()])
    });
    let path = scratch.path("saved.tar");
    save(&store, &images, &mut fs::File::create(&path).unwrap(), &path).unwrap();
    let other = Store::open(scratch.path("other")).unwrap();
    let found = loaded(&other, &path).unwrap();
    assert_eq!(found.len(), 2);
    for ((image, _), found) in images.iter().zip(&found) {
        assert_eq!(image.id, found.id);
    }
    assert_eq!(files_of(&other, "one:1"), MERGED);
    // Without docker's list, it is an OCI layout.
    let unpacked = scratch.path("unpacked");
    fs::create_dir(&unpacked).unwrap();
    tar::Archive::new(fs::File::open(&path).unwrap()).unpack(&unpacked).unwrap();
    fs::remove_file(unpacked.join("manifest.json")).unwrap();
    let third = Store::open(scratch.path("third")).unwrap();
    loaded(&third, &unpacked).unwrap();
    assert_eq!(third.find("ghcr.io/two:1").unwrap(), images[1].0.id);
    // A layer whose file is damaged is not saved as if it were whole.
    let layer = store.layer_path(&images[0].0.record.layers[0].diff_id).unwrap();
    std::os::unix::fs::FileExt::write_all_at(
        &fs::File::options().write(true).open(layer).unwrap(),
        b"X",
        4096,
    )
    .unwrap();
    let error = save(&store, &images, &mut Vec::new(), &path).unwrap_err();
    assert!(matches!(error, Error::Digest { .. }), "{error}");
}

#[test]
fn image_of_another_processor_is_refused_and_a_hundred_layers_are_merged() {
    let scratch = Scratch::new();
    let store = store(&scratch);
    let names: Vec<_> = (0..100).map(|number| format!("f{number:03}")).collect();
    let entries: Vec<[&str; 2]> = names.iter().map(|name| [name.as_str(), "same"]).collect();
    let layers: Vec<&[&str]> = entries.iter().map(|entries| &entries[..]).collect();
    layout(&scratch.path("image"), &layers, "app:1");
    let is_cancelled = Arc::default();
    let platform = Platform { architecture: "arm64".into(), ..Platform::default() };
    let options = Options {
        platform: &platform,
        limits: Limits::default(),
        progress: &Silent,
        is_cancelled: &is_cancelled,
    };
    let error = load(&store, &scratch.path("image"), options).unwrap_err().to_string();
    assert!(error.contains("it is for linux/amd64, and not for linux/arm64"), "{error}");
    loaded(&store, &scratch.path("image")).unwrap();
    let files = files_of(&store, "app:1");
    assert_eq!((files.len(), files.last().map(String::as_str)), (101, Some("same")));
    assert_eq!(store.image(&store.find("app:1").unwrap()).unwrap().parts.len(), 101);
}

#[test]
fn cancelled_load_leaves_nothing() {
    let scratch = Scratch::new();
    let store = store(&scratch);
    layout(&scratch.path("image"), &[LOW], "app:1");
    let (is_cancelled, platform) = (Arc::new(AtomicBool::new(true)), Platform::default());
    let platform = Platform { architecture: "amd64".into(), ..platform };
    let options = Options {
        platform: &platform,
        limits: Limits::default(),
        progress: &Silent,
        is_cancelled: &is_cancelled,
    };
    load(&store, &scratch.path("image"), options).unwrap_err();
    assert_eq!(layers_in(&store), 0);
    assert!(names_in(&store.root().join("partial")).is_empty());
}
