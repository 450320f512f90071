//! Snapshots that have only what differs from another.

use std::fs;
use std::os::unix::fs::MetadataExt;

use volt_tests::{Boot, Guest, Snapshot, needs};

fn counting(mib: u64) -> Guest {
    let mut guest = Boot::small(&format!("count mib={mib}")).start();
    guest.wait_for("count");
    guest
}

/// Goes through `mib` of memory twice: a wrong page would be found.
fn goes_on(guest: &mut Guest, mib: u64) {
    let first = guest.next_number("count");
    while guest.next_number("count") < first + 2 * mib * 4 {}
    assert!(!guest.output().contains("WRONG"), "{}", guest.output());
}

fn same_memory(one: &Snapshot, other: &Snapshot) {
    let bytes = |snapshot: &Snapshot| fs::read(snapshot.memory_path()).unwrap();
    assert!(bytes(one) == bytes(other), "{one:?} and {other:?} differ");
}

#[test]
fn a_base_and_a_diff_are_the_full_snapshot_of_the_same_instant() {
    needs!(kvm);
    let mut guest = counting(8);
    let base = guest.snapshot();
    goes_on(&mut guest, 8);
    guest.pause();
    let (diff, full) = (guest.snapshot_as(&["--diff"]), guest.snapshot());
    guest.resume();
    goes_on(&mut guest, 8);
    assert!(!diff.memory_path().exists() && diff.diff_path().exists());
    same_memory(&diff.merged(), &full);
    // Both restored, and all three of what the guest does in them, byte for byte, at the instant they were restored.
    let of_diff = diff.restore_as(&["--paused"]);
    same_memory(&of_diff.snapshot(), &full);
    of_diff.resume();
    for snapshot in [&base, &diff, &full, &diff.merged()] {
        goes_on(&mut snapshot.restore(), 8);
    }
}

#[test]
fn a_restored_guest_s_diff_has_what_it_wrote_and_no_more() {
    needs!(kvm);
    // 64 MiB that it fills, and then it sleeps.
    let mut guest = Boot::small("count mib=32").start();
    guest.wait_for("count");
    let base = guest.snapshot();
    let clone = base.restore_as(&["--paused"]);
    let diff = clone.snapshot_as(&["--diff"]);
    let size = |path| fs::metadata(path).unwrap().blocks() * 512;
    let (whole, small) = (size(base.memory_path()), size(diff.diff_path()));
    assert!(whole > 30 << 20 && small < 1 << 20, "{small} of {whole} bytes");
    goes_on(&mut diff.restore(), 32);
}

#[test]
fn a_diff_s_clone_makes_diffs_of_the_same_base() {
    needs!(kvm);
    let mut guest = counting(8);
    let base = guest.snapshot();
    let mut from = base.clone();
    for _ in 0..5 {
        guest = from.restore();
        goes_on(&mut guest, 8);
        from = guest.snapshot_as(&["--diff"]);
        let named = from.state()["metadata"]["base"]["path"].as_str().unwrap().to_owned();
        assert_eq!(named, base.directory().to_str().unwrap(), "a chain is never deeper");
    }
    goes_on(&mut from.merged().restore(), 8);
}

#[test]
fn one_that_would_be_large_is_a_full_one() {
    needs!(kvm);
    let mut guest = Boot::small("count mib=100").memory("128M").start();
    guest.wait_for("count");
    let base = guest.snapshot();
    let mut clone = base.restore();
    goes_on(&mut clone, 100);
    let large = clone.snapshot_as(&["--diff"]);
    assert!(large.memory_path().exists() && !large.diff_path().exists());
    base.remove();
    goes_on(&mut large.restore(), 100);
}

#[test]
fn without_its_base_it_is_nothing() {
    needs!(kvm);
    let guest = counting(4);
    let nowhere = guest.scratch().fresh("first");
    guest.try_snapshot_as(&nowhere, &["--diff"]).refused(&["snapshot_type", "take one of this VM first"]);
    assert!(!nowhere.exists());
    let (base, other) = (guest.snapshot(), counting(3).snapshot());
    let diff = base.restore_as(&["--paused"]).snapshot_as(&["--diff"]);
    diff.edit(|state| state["metadata"]["base"]["path"] = other.directory().to_str().unwrap().into());
    let digest = base.state()["metadata"]["memory_digest"].as_str().unwrap().to_owned();
    diff.try_restore().refused(&[
        diff.directory().to_str().unwrap(),
        "is a diff over memory with digest",
        &digest,
    ]);
    diff.edit(|state| state["metadata"]["base"]["path"] = "/nowhere/at all".into());
    diff.try_restore().refused(&["is a diff, and its base /nowhere/at all is not there"]);
    // A base that has moved beside its diff is found.
    diff.edit(|state| {
        let name = base.directory().file_name().unwrap().to_str().unwrap();
        state["metadata"]["base"]["path"] = format!("/nowhere/{name}").into();
    });
    goes_on(&mut diff.restore(), 4);
}

#[test]
fn a_damaged_one_is_refused() {
    needs!(kvm);
    let guest = counting(4);
    let diff = guest.snapshot().restore_as(&["--paused"]).snapshot_as(&["--diff"]);
    let path = diff.diff_path();
    let whole = fs::read(&path).unwrap();
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    fs::write(&path, &flipped).unwrap();
    diff.try_restore().refused(&[path.to_str().unwrap(), "does not end like a diff"]);
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    diff.try_restore().refused(&[path.to_str().unwrap(), "bytes long"]);
    let mut listed = whole.clone();
    listed[(64 << 20) + 100] ^= 4;
    fs::write(&path, &listed).unwrap();
    diff.try_restore().refused(&[path.to_str().unwrap(), "damaged list of pages"]);
    fs::remove_file(&path).unwrap();
    diff.try_restore().refused(&[path.to_str().unwrap(), "is missing"]);
}
