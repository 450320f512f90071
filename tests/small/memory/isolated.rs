//! VMs with a base of their own (`--isolate-base`) share no page of the snapshot's memory, and need none of
//! its files once they run.

use std::fs;
use std::path::Path;

use serde_json::json;
use volt_tests::child::Child;
use volt_tests::damage::open_to_change;
use volt_tests::{Boot, Guest, Snapshot, needs, numbers, without_generation};
use volt_vmm::{RestoreOptions, Unpack};

use crate::memory::lazy::{Warm, goes_on, packed};

const MIB: u64 = 8;

/// A counting guest's full snapshot, and a later diff over it.
fn full_and_diff() -> [Snapshot; 2] {
    let mut guest = Boot::small(&format!("count mib={MIB}")).start();
    while guest.next_number("count") < MIB * 4 + 4 {} // by then the guest has written all of its memory
    let full = guest.snapshot();
    let from = guest.next_number("count");
    while guest.next_number("count") < from + MIB {}
    [full, guest.snapshot_as(&["--diff"])]
}

/// Waits until the guest has checked all of its memory twice.
fn checks_all_memory(guest: &mut Guest) {
    let from = guest.next_number("count");
    while guest.next_number("count") < from + 2 * MIB * 4 {}
    assert!(!guest.output().contains("WRONG"), "{}", guest.output());
}

/// Returns the mappings of files in the parent directory of a snapshot, where its base lies too. The guest
/// runs, so its memory is mapped.
fn mapped_files(guest: &mut Guest, snapshot: &Snapshot) -> Vec<String> {
    guest.next_number("count");
    let maps = fs::read_to_string(format!("/proc/{}/maps", guest.pid())).expect("the VM's mappings");
    assert!(maps.contains("[stack]"), "{maps}");
    let parent = snapshot.directory().parent().expect("a parent").to_str().expect("a path in UTF-8");
    maps.lines().filter(|line| line.contains(parent)).map(str::to_owned).collect()
}

fn truncate(path: &Path) {
    open_to_change(path).set_len(0).expect("truncate a snapshot's file");
}

#[test]
fn isolated_vm_maps_no_file_of_its_snapshot_and_survives_their_truncation() {
    needs!(kvm, root);
    let [full, diff] = full_and_diff();
    for snapshot in [&full, &diff] {
        let shared = mapped_files(&mut snapshot.restore(), snapshot);
        let base = full.memory_path();
        assert!(shared.iter().any(|line| line.contains(base.to_str().unwrap())), "{shared:?}");
    }
    let mut clones = [&full, &diff].map(|snapshot| snapshot.restore_as(&["--isolate-base"]));
    for (clone, snapshot) in clones.iter_mut().zip([&full, &diff]) {
        assert_eq!(mapped_files(clone, snapshot), [""; 0]);
    }
    let before: Vec<_> =
        [&full, &diff.merged()].map(|snapshot| fs::read(snapshot.memory_path()).unwrap()).into();
    truncate(&full.memory_path());
    truncate(&diff.diff_path());
    for (clone, before) in clones.iter_mut().zip(before) {
        checks_all_memory(clone);
        // A rewind and a fork depend on the copy alone.
        let child = Child::fork(clone.socket(), clone.scratch().directory(), &[("child", json!({}))], false);
        child[0].reaches("count", numbers(&clone.output(), "count").pop().unwrap() + MIB * 4);
        clone.pause();
        let (status, answer) = clone.ask("PUT", "/v1/vm/rewind", "");
        assert_eq!(status, 200, "{answer}");
        let again = fs::read(clone.snapshot().memory_path()).unwrap();
        assert!(without_generation(again) == without_generation(before), "memory differs after the rewind");
    }
}

#[test]
fn diff_of_an_isolated_vm_has_the_snapshot_as_its_base() {
    needs!(kvm);
    let [_full, diff] = full_and_diff();
    let mut clone = diff.restore_as(&["--isolate-base"]);
    checks_all_memory(&mut clone);
    clone.pause();
    let memory = |snapshot: &Snapshot| without_generation(fs::read(snapshot.memory_path()).unwrap());
    let later = clone.snapshot_as(&["--diff"]);
    assert!(later.diff_path().exists());
    assert!(memory(&later.merged()) == memory(&clone.snapshot()));
}

#[test]
fn recording_of_an_isolated_vm_needs_no_file() {
    needs!(kvm, page_faults);
    let [full, _] = full_and_diff();
    let mut clone = full.restore_as(&["--isolate-base", "--record", "api"]);
    clone.next_number("count");
    truncate(&full.memory_path());
    checks_all_memory(&mut clone);
    let (status, answer) = clone.ask("PUT", "/v1/vm/record", "");
    assert!(status == 200 && full.directory().join("working-set").exists(), "{answer}");
}

#[test]
fn vm_loaded_over_rest_is_isolated() {
    needs!(kvm, root);
    let [full, _] = full_and_diff();
    let mut guest = Guest::waiting();
    let load = json!({"snapshot_path": full.directory(), "resume_vm": true, "isolate_base": true});
    assert_eq!(guest.ask("PUT", "/snapshot/load", &load.to_string()), (204, String::new()));
    assert_eq!(mapped_files(&mut guest, &full), [""; 0]);
    full.remove();
    checks_all_memory(&mut guest);
}

#[test]
fn isolated_vms_unpack_each_for_itself() {
    needs!(kvm, page_faults);
    let warm = Warm::new();
    let isolated = |unpack| RestoreOptions::default().isolate_base(true).unpack(unpack);
    let clones =
        [Unpack::OnTouch, Unpack::OnTouch, Unpack::AtOnce].map(|unpack| warm.restore(isolated(unpack)));
    clones.iter().for_each(|(said, _)| goes_on(said));
    assert_eq!(warm.snapshot.chunks_fetched(), 0, "nothing was fetched for VMs that share");
    let (said, _vm) = warm.restore(RestoreOptions::default());
    goes_on(&said);
    assert!(warm.snapshot.chunks_fetched() > 0);
}

#[test]
fn isolated_vm_that_was_unpacked_at_once_survives_the_truncation_of_its_pack() {
    needs!(kvm);
    let (snapshot, _) = packed(MIB, &["--compress", "lz4"]);
    let mut guest = snapshot.restore_as(&["--isolate-base", "--unpack"]);
    guest.next_number("count");
    truncate(&snapshot.memory_path());
    checks_all_memory(&mut guest);
}

#[test]
fn shared_pager_of_an_isolated_vm_is_refused() {
    needs!(kvm);
    let (snapshot, _) = packed(MIB, &["--compress", "lz4"]);
    let outcome = snapshot.try_restore_as(&["--isolate-base", "--pager", "shared"]);
    outcome.refused(&["pager", "isolate_base", "give one of them"]);
    let load = json!({"snapshot_path": snapshot.directory(), "isolate_base": true, "pager": {}});
    let (status, answer) = Guest::waiting().ask("PUT", "/snapshot/load", &load.to_string());
    assert!(status == 400 && answer.contains("isolate_base"), "{answer}");
}
