//! A snapshot's state names the layers of its disks. Another layer in their place is refused, even over the
//! same base.

use std::fs;
use std::path::PathBuf;

use volt_tests::{Boot, Guest, Outcome, Scratch, Snapshot, needs};

const REFUSED: &[&str] = &["disk-root.layer", "is not the layer of this snapshot", "and state.json names"];

/// Starts a guest with a layer over a base.
fn guest_in(scratch: &Scratch) -> Guest {
    let (base, layer) = (scratch.fresh("base"), scratch.fresh("layer"));
    fs::write(&base, vec![7; 1 << 20]).unwrap();
    let words = format!("path={},layer={},id=root", base.display(), layer.display());
    let mut guest = Boot::small("disk").memory("2M").device(["--disk".to_owned(), words]).start();
    while guest.next_number("sector") < 70 {}
    guest
}

fn layer_of(snapshot: &Snapshot) -> PathBuf {
    snapshot.directory().join("disk-root.layer")
}

/// Replaces the layer of a snapshot by that of another.
fn give(snapshot: &Snapshot, other: &Snapshot) {
    fs::remove_file(layer_of(snapshot)).unwrap();
    fs::copy(layer_of(other), layer_of(snapshot)).unwrap();
}

fn goes_on(mut guest: Guest) {
    let number = guest.next_number("sector");
    while guest.next_number("sector") < number + 70 {}
    assert!(!guest.output().contains("WRONG"), "{}", guest.output());
}

#[test]
fn layer_of_another_snapshot_is_refused() {
    needs!(kvm, page_faults);
    let scratch = Scratch::new();
    let guest = guest_in(&scratch);
    // Both snapshots are of one pause, so their layers have the same clusters with the same data.
    guest.pause();
    let [first, second] = [guest.snapshot(), guest.snapshot()];
    drop(guest);
    first.verify().succeeded();
    let swapped = first.copy();
    give(&swapped, &second);
    swapped.try_restore().refused(REFUSED);
    swapped.verify().refused(REFUSED);
    let to = scratch.path("converted");
    swapped.try_convert(&to, &["--compress", "lz4"]).refused(REFUSED);
    assert!(!to.exists());
    goes_on(first.restore());
    // A converted snapshot has the same layer and names it.
    let converted = first.converted(&["--compress", "lz4"]);
    converted.verify().succeeded();
    goes_on(converted.restore());
    give(&converted, &second);
    converted.try_restore().refused(REFUSED);
}

#[test]
fn merge_refuses_the_layer_of_another_snapshot() {
    needs!(kvm);
    let scratch = Scratch::new();
    let mut guest = guest_in(&scratch);
    let base = guest.snapshot();
    guest.next_number("sector");
    let diff = guest.snapshot_as(&["--diff"]);
    drop(guest);
    goes_on(diff.merged().restore());
    give(&diff, &base);
    let to = scratch.path("merged");
    let directories = [diff.directory(), &to].map(|path| path.to_str().unwrap());
    Outcome::of(["snapshot", "merge"].into_iter().chain(directories)).refused(REFUSED);
    assert!(!to.exists());
    diff.try_restore().refused(REFUSED);
}

#[test]
fn layer_with_a_changed_list_of_clusters_is_refused() {
    needs!(kvm);
    let scratch = Scratch::new();
    let guest = guest_in(&scratch);
    guest.pause();
    let snapshot = guest.snapshot();
    drop(guest);
    // The synced map begins at 4 KiB. Without its last cluster the guest would read the base there.
    let mut layer = fs::read(layer_of(&snapshot)).unwrap();
    let clusters = layer[4096];
    layer[4096] = clusters & !(1 << (7 - clusters.leading_zeros()));
    fs::remove_file(layer_of(&snapshot)).unwrap();
    fs::write(layer_of(&snapshot), layer).unwrap();
    snapshot.verify().refused(REFUSED);
    snapshot.try_restore().refused(REFUSED);
}

#[test]
fn conversion_names_the_layers_of_an_old_state() {
    needs!(kvm);
    let scratch = Scratch::new();
    let guest = guest_in(&scratch);
    guest.pause();
    let [old, other] = [guest.snapshot(), guest.snapshot()];
    drop(guest);
    old.edit(|state| drop(state["metadata"].as_object_mut().unwrap().remove("layers").unwrap()));
    old.verify().succeeded();
    let image = old.state()["config"]["devices"]["disks"][0]["path"].as_str().unwrap().to_owned();
    goes_on(old.restore_as(&["--disk", &format!("id=root,path={image}")]));
    let converted = old.converted(&["--compress", "none"]);
    assert!(converted.state()["metadata"]["layers"]["root"].is_string(), "{}", converted.state()["metadata"]);
    give(&converted, &other);
    converted.verify().refused(REFUSED);
}
