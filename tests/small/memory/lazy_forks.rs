//! Forks of guests over packed memory that is filled on touch. A fork fetches nothing. The children go on
//! with the right content in this process and in others, by their parent's service, pager or pack.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;

use volt_tests::child::Child;
use volt_tests::{Recorder, limited, needs, numbers, wait_until};
use volt_vmm::{RestoreOptions, Snapshot, SnapshotOptions, Unpack, Vm};

use crate::memory::lazy::{MIB, Warm, goes_on, packed, store, wait_for};
use crate::memory::pager::{Shared, base_of};
use crate::snapshot::restoring::goes_on_from;

/// Returns options for a child that stays paused, and the recorder of its output.
fn paused() -> (Recorder, RestoreOptions) {
    let recorder = Recorder::default();
    let options = RestoreOptions::default().console(recorder.console()).paused();
    (recorder, options)
}

/// Returns a paused VM of `warm` that has touched a part of its memory.
fn touched(warm: &Warm) -> Vm {
    let (said, vm) = warm.restore(RestoreOptions::default());
    wait_until("the guest counts", || !numbers(&said.text(), "count").is_empty());
    vm.pause().unwrap();
    vm
}

#[test]
fn fork_fetches_nothing_and_its_children_share_fetched_chunks() {
    needs!(kvm, page_faults);
    let warm = Warm::new();
    let parent = touched(&warm);
    let before = warm.snapshot.chunks_fetched();
    let ((first_said, first), (second_said, second)) = (paused(), paused());
    let children = parent.fork([first, second]).unwrap();
    let after = warm.snapshot.chunks_fetched();
    // A restore touches up to two pages to place the machine's state.
    assert!(after <= before + 2 && after < warm.stored(), "{before}, then {after} of {}", warm.stored());
    drop(parent);
    children[0].resume().unwrap();
    goes_on(&first_said);
    let by_first = warm.snapshot.chunks_fetched();
    assert!(by_first > after + MIB * 8 && by_first <= warm.stored(), "{after}, then {by_first}");
    children[1].resume().unwrap();
    goes_on(&second_said);
    let by_both = warm.snapshot.chunks_fetched();
    assert!(by_both < by_first + 4, "{by_first}, then {by_both}");
    // A grandchild sees its parent's writes, and its diff has the snapshot as base.
    let (said, options) = paused();
    let grandchild = children[1].fork([options]).unwrap().remove(0);
    drop(children);
    let diff = SnapshotOptions::default().diff();
    grandchild.snapshot_with(&store(&warm.scratch), "diff", &diff).unwrap();
    grandchild.resume().unwrap();
    goes_on(&said);
    let again = Recorder::default();
    let options = RestoreOptions::default().console(again.console());
    let _again = Snapshot::open(&store(&warm.scratch), "diff").unwrap().restore_with(options).unwrap();
    goes_on(&again);
}

#[test]
fn child_of_a_lazy_guest_is_restored_and_rewound_with_each_unpack_option() {
    needs!(kvm, page_faults);
    let warm = Warm::new();
    let parent = touched(&warm);
    let here = parent.snapshot_in_memory().unwrap();
    drop(parent);
    for unpack in [Unpack::OnTouch, Unpack::AtOnce] {
        let (said, options) = paused();
        let child = here.restore_with(options.unpack(unpack)).unwrap();
        child.resume().unwrap();
        goes_on(&said);
        let before = numbers(&said.text(), "count").len();
        child.rewind().unwrap();
        wait_until("the guest goes on", || numbers(&said.text(), "count").len() > before);
        let now = numbers(&said.text(), "count").last().copied().unwrap();
        wait_for(&said, now + 2 * MIB * 4);
    }
}

#[test]
fn child_in_another_process_is_filled_from_its_parents_pack() {
    needs!(kvm, page_faults);
    let warm = Warm::new();
    let parent = touched(&warm);
    let before = warm.snapshot.chunks_fetched();
    let (near, far) = UnixStream::pair().unwrap();
    let handover = parent.snapshot_in_memory().unwrap().handover().unwrap();
    // KVM may touch up to two pages to save the machine's state.
    let after = warm.snapshot.chunks_fetched();
    assert!(
        after <= before + 2 && after < warm.stored(),
        "{before}, then {after}: fetched to be handed over"
    );
    drop(parent);
    let there = std::thread::scope(|scope| {
        scope.spawn(|| handover.send(&near).unwrap());
        limited("the snapshot is received", || Snapshot::receive(&far)).unwrap()
    });
    let (said, options) = paused();
    let child = there.restore_with(options).unwrap();
    assert!(there.chunks_fetched() <= 2, "{}", there.chunks_fetched());
    child.resume().unwrap();
    goes_on(&said);
    assert!(there.chunks_fetched() > MIB * 8, "{}", there.chunks_fetched());
    assert_eq!(warm.snapshot.chunks_fetched(), after);
}

/// Returns the allocated bytes of the base under a guest's memory.
fn filled(pid: u32, base: &str) -> u64 {
    let all = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let files = all.filter_map(|entry| fs::metadata(entry.ok()?.path()).ok());
    let blocks = files.filter(|file| file.ino().to_string() == base).map(|file| file.blocks());
    blocks.max().expect("the process has a descriptor of its base") * 512
}

#[test]
fn fork_of_a_guest_on_the_shared_pager_fetches_nothing_and_stays_on_it() {
    needs!(kvm, page_faults);
    let shared = Shared::new();
    let mut guest = shared.restore(&["--paused"]);
    wait_until("the guest's memory is mapped", || !base_of(&guest).is_empty());
    let base = base_of(&guest).remove(0);
    let before = filled(guest.pid(), &base);
    let names = ["a", "b"].map(|name| (name, serde_json::json!({})));
    let children = Child::fork(guest.socket(), guest.scratch().directory(), &names, true);
    let after = filled(guest.pid(), &base);
    assert!(after <= before + (64 << 10) && after < 1 << 20, "{before} bytes, then {after}");
    let spoken = |child: &Child| numbers(&child.output(), "count").last().copied().unwrap_or(0);
    for child in &children {
        let maps = fs::read_to_string(format!("/proc/{}/maps", child.pid())).unwrap();
        assert!(maps.lines().any(|line| line.split_whitespace().nth(4) == Some(&base)), "{maps}");
        let (status, why) = child.ask("PATCH", "/vm", r#"{"state":"Resumed"}"#);
        assert!(status < 300, "{status} {why}");
        wait_until("the child counts", || spoken(child) > 0);
        child.reaches("count", spoken(child) + 2 * MIB * 4);
        assert!(!child.output().contains("WRONG"), "{}", child.output());
    }
    assert!(filled(guest.pid(), &base) > MIB << 20, "the children have filled the base");
    guest.resume();
    goes_on_from(&shared.before, &mut guest);
    // A child finds a new pager just like its parent.
    shared.kill_pager();
    let late = shared.restore(&[]);
    let last = spoken(&children[0]);
    children[0].reaches("count", last + MIB * 4);
    drop(late);
}

#[test]
fn fork_of_a_guest_with_its_own_pager_leaves_its_children_independent() {
    needs!(kvm, page_faults);
    let (snapshot, before) = packed(MIB, &["--compress", "lz4", "--chunk-size", "16K"]);
    let mut guest = snapshot.restore_as(&["--paused"]);
    wait_until("the guest's memory is mapped", || !base_of(&guest).is_empty());
    let base = base_of(&guest).remove(0);
    let children =
        Child::fork(guest.socket(), guest.scratch().directory(), &[("a", serde_json::json!({}))], false);
    let child = &children[0];
    assert!(filled(guest.pid(), &base) < 1 << 20, "nothing was fetched for the fork");
    guest.resume();
    goes_on_from(&before, &mut guest);
    drop(guest);
    let spoken = || numbers(&child.output(), "count").last().copied().unwrap_or(0);
    wait_until("the child counts", || spoken() > 0);
    child.reaches("count", spoken() + 2 * MIB * 4);
    assert!(!child.output().contains("WRONG"), "{}", child.output());
}
