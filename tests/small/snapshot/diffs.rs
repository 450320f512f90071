//! Snapshots that have only the pages that differ from a base.

use std::fs;
use std::os::unix::fs::MetadataExt;

use volt_tests::damage::overwrite;
use volt_tests::namespace::Namespace;
use volt_tests::{Boot, Guest, Outcome, Scratch, Snapshot, needs, numbers, without_generation};

use crate::snapshot::packed::flip_file;

/// Starts a guest that counts as it checks `mib` of memory.
pub fn counting(mib: u64) -> Guest {
    let mut guest = Boot::small(&format!("count mib={mib}")).start();
    guest.wait_for("count");
    guest
}

/// Waits until the guest has checked `mib` of memory twice.
pub fn goes_on(guest: &mut Guest, mib: u64) {
    // The output may begin before the last snapshot.
    let said = numbers(&guest.output(), "count").pop();
    let first = said.unwrap_or_else(|| guest.next_number("count"));
    while guest.next_number("count") < first + 2 * mib * 4 {}
    assert!(!guest.output().contains("WRONG"), "{}", guest.output());
}

fn same_memory(one: &Snapshot, other: &Snapshot) {
    let bytes = |snapshot: &Snapshot| without_generation(fs::read(snapshot.memory_path()).unwrap());
    assert!(bytes(one) == bytes(other), "{one:?} and {other:?} differ");
}

#[test]
fn base_and_diff_equal_the_full_snapshot_of_the_same_instant() {
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
    // A restored diff has the same memory, and no guest finds a wrong page.
    let of_diff = diff.restore_as(&["--paused"]);
    same_memory(&of_diff.snapshot(), &full);
    of_diff.resume();
    for snapshot in [&base, &diff, &full, &diff.merged()] {
        goes_on(&mut snapshot.restore(), 8);
    }
}

#[test]
fn damaged_base_or_diff_is_not_merged() {
    needs!(kvm);
    let mut guest = counting(8);
    let base = guest.snapshot();
    goes_on(&mut guest, 8);
    let diff = guest.snapshot_as(&["--diff"]);
    let to = guest.scratch().fresh("to");
    let merge = |words: &[&str]| {
        let directories = [diff.directory().to_str().unwrap(), to.to_str().unwrap()];
        Outcome::of(["snapshot", "merge"].into_iter().chain(directories)).refused(words);
        assert!(!to.exists());
    };
    // The second page is also in the diff, but its damage still counts.
    for at in [9 << 20, 17 << 20] {
        flip_file(&base.memory_path(), at);
        merge(&[base.memory_path().to_str().unwrap(), "is damaged: the digest of its pages is "]);
        flip_file(&base.memory_path(), at);
    }
    flip_file(&diff.diff_path(), 17 << 20);
    merge(&[diff.diff_path().to_str().unwrap(), "is damaged: the digest of its pages is "]);
    flip_file(&diff.diff_path(), 17 << 20);
    diff.merged().verify().succeeded();
}

#[test]
fn another_diff_over_the_same_base_is_refused() {
    needs!(kvm);
    let mut guest = counting(8);
    let _base = guest.snapshot();
    let first = guest.snapshot_as(&["--diff"]);
    goes_on(&mut guest, 8);
    let second = guest.snapshot_as(&["--diff"]);
    fs::remove_file(first.diff_path()).unwrap();
    fs::copy(second.diff_path(), first.diff_path()).unwrap();
    let words = ["memory.diff", "names a memory.diff with checksum "];
    first.try_restore().refused(&words);
    first.verify().refused(&words);
}

/// Reading KVM's dirty log clears it.
#[test]
fn diff_after_a_failed_one_is_complete() {
    needs!(kvm, root);
    let scratch = Scratch::new();
    let disk = scratch.path("disk");
    fs::create_dir(&disk).unwrap();
    let namespace = Namespace::small_disk(&disk, 512);
    let mut guest = Boot::small("count mib=16").inside(&namespace).start();
    guest.wait_for("count");
    let _base = guest.snapshot();
    goes_on(&mut guest, 16);
    guest.pause();
    guest.try_snapshot_as(&disk.join("diff"), &["--diff"]).refused(&["No space left"]);
    same_memory(&guest.snapshot_as(&["--diff"]).merged(), &guest.snapshot());
}

#[test]
fn diff_of_a_restored_guest_has_only_written_pages() {
    needs!(kvm);
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
fn clone_of_a_diff_makes_diffs_of_the_same_base() {
    needs!(kvm);
    let mut guest = counting(8);
    let base = guest.snapshot();
    let mut from = base.clone();
    for _ in 0..5 {
        guest = from.restore();
        goes_on(&mut guest, 8);
        from = guest.snapshot_as(&["--diff"]);
        let named = from.state()["metadata"]["base"]["path"].as_str().unwrap().to_owned();
        assert_eq!(named, base.directory().to_str().unwrap(), "a diff has a diff as base");
    }
    goes_on(&mut from.merged().restore(), 8);
}

#[test]
fn large_diff_becomes_a_full_snapshot() {
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
fn diff_without_its_base_is_refused() {
    needs!(kvm);
    let guest = counting(4);
    let nowhere = guest.scratch().fresh("first");
    guest.try_snapshot_as(&nowhere, &["--diff"]).refused(&["kind", "take a full snapshot first"]);
    assert!(!nowhere.exists());
    let (base, other) = (guest.snapshot(), counting(3).snapshot());
    let diff = base.restore_as(&["--paused"]).snapshot_as(&["--diff"]);
    diff.edit(|state| state["metadata"]["base"]["path"] = other.directory().to_str().unwrap().into());
    // An edited state file has no mark of this user, so the base needs a grant.
    let anywhere = ["--allow-path", "/"];
    let digest = base.state()["metadata"]["memory_digest"].as_str().unwrap().to_owned();
    diff.try_restore_as(&anywhere).refused(&[
        diff.directory().to_str().unwrap(),
        "is a diff over memory with digest",
        &digest,
    ]);
    diff.edit(|state| state["metadata"]["base"]["path"] = "/nowhere/at all".into());
    diff.try_restore_as(&anywhere).refused(&["is a diff, and its base /nowhere/at all is not there"]);
    // A base that has moved beside its diff is found.
    diff.edit(|state| {
        let name = base.directory().file_name().unwrap().to_str().unwrap();
        state["metadata"]["base"]["path"] = format!("/nowhere/{name}").into();
    });
    goes_on(&mut diff.restore_as(&anywhere), 4);
}

#[test]
fn diff_is_inspected_and_verified_and_not_converted() {
    needs!(kvm);
    let mut guest = counting(4);
    let base = guest.snapshot();
    goes_on(&mut guest, 4);
    let diff = guest.snapshot_as(&["--diff"]);
    let found: serde_json::Value = serde_json::from_str(&diff.inspect(&["--json"])).unwrap();
    let sum = |kind: &str, of: &str| found["kinds"][kind][of].as_u64().unwrap();
    assert!((4 << 20..5 << 20).contains(&sum("diff", "memory_bytes")), "{found}");
    assert_eq!(sum("diff", "memory_bytes") + sum("base", "memory_bytes"), 64 << 20);
    assert_eq!((sum("base", "stored_bytes"), &found["memory_file"]["name"]), (0, &"memory.diff".into()));
    let to = guest.scratch().path("packed");
    diff.try_convert(&to, &["--compress", "lz4"])
        .refused(&["is a diff, which cannot be converted: merge it into its base"]);
    assert!(!to.exists());
    assert!(diff.verify().succeeded().stdout.contains("every checksum is right"));
    let first = found["pages"].as_array().unwrap().iter().find(|stretch| stretch["kind"] == "diff").unwrap();
    let page = first["pages"]["start"].as_u64().unwrap();
    flip_file(&diff.diff_path(), page * 4096);
    diff.verify().refused(&["memory.diff", "is damaged: the digest of its pages is "]);
    flip_file(&diff.diff_path(), page * 4096);
    flip_file(&base.memory_path(), page * 4096);
    diff.verify().refused(&["memory.snap", "is damaged: the digest of its pages is "]);
}

#[test]
fn damaged_diff_is_refused() {
    needs!(kvm);
    let guest = counting(4);
    let diff = guest.snapshot().restore_as(&["--paused"]).snapshot_as(&["--diff"]);
    let path = diff.diff_path();
    let whole = fs::read(&path).unwrap();
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    overwrite(&path, &flipped);
    diff.try_restore().refused(&[path.to_str().unwrap(), "does not end with a diff's trailer"]);
    overwrite(&path, &whole[..whole.len() - 1]);
    diff.try_restore().refused(&[path.to_str().unwrap(), "bytes long"]);
    let mut listed = whole.clone();
    listed[(64 << 20) + 100] ^= 4;
    overwrite(&path, &listed);
    diff.try_restore().refused(&[path.to_str().unwrap(), "damaged list of pages"]);
    fs::remove_file(&path).unwrap();
    diff.try_restore().refused(&[path.to_str().unwrap(), "is missing"]);
}
