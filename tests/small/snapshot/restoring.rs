//! A restored guest continues without a gap.

use volt_tests::{Boot, Guest, Snapshot, consecutive, needs};

/// Returns a snapshot of a guest that counts over `mib` of checked memory, and the guest's output so far.
pub(crate) fn counting(mib: u32) -> (Snapshot, String) {
    let mut guest = Guest::boot(&format!("count mib={mib}"));
    guest.wait_for("count 3");
    guest.pause();
    let snapshot = guest.snapshot();
    (snapshot, guest.settled_output())
}

/// Checks that a restored guest's output continues `before` without a gap.
pub(crate) fn goes_on_from(before: &str, restored: &mut Guest) {
    let count = consecutive(before, "count");
    while restored.next_number("count") < count + 10 {}
    restored.pause();
    let all = before.to_owned() + &restored.settled_output();
    assert!(consecutive(&all, "count") >= count + 10);
}

#[test]
fn killed_guest_continues_with_its_memory() {
    needs!(kvm);
    let mut guest = Guest::boot("count mib=8");
    guest.wait_for("count 20");
    guest.pause();
    let snapshot = guest.snapshot();
    let before = guest.kill();
    goes_on_from(&before, &mut snapshot.restore());
}

#[test]
fn snapshot_of_a_running_guest_keeps_its_instant() {
    needs!(kvm);
    let mut guest = Guest::boot("count mib=8");
    let before = guest.next_number("count");
    let snapshot = guest.snapshot();
    let after = guest.next_number("count");
    // The guest changes its memory, and the snapshot must not change.
    for _ in 0..50 {
        guest.next_number("count");
    }
    guest.pause();
    let now = consecutive(&guest.settled_output(), "count");
    let restored = snapshot.restore().next_number("count");
    assert!(before < restored && restored <= now, "{before} {restored} {now}, {after}");
}

#[test]
fn two_clones_run_from_one_snapshot() {
    needs!(kvm);
    let (snapshot, before) = counting(8);
    let mut clones = [snapshot.restore(), snapshot.restore()];
    for clone in &mut clones {
        goes_on_from(&before, clone);
    }
}

#[test]
fn eight_clones_leave_their_snapshot_unchanged() {
    needs!(kvm);
    let (snapshot, before) = counting(8);
    let untouched = snapshot.fingerprint();
    let mut clones: Vec<Guest> = (0..8).map(|_| snapshot.restore()).collect();
    for clone in &mut clones {
        goes_on_from(&before, clone);
    }
    // By 80 each clone has written all of its memory under test: 8 MiB are 32 steps.
    for clone in &mut clones {
        clone.resume();
        while clone.next_number("count") < 80 {}
    }
    assert_eq!(snapshot.fingerprint(), untouched);
    assert_eq!(volt_tests::scratch::list(snapshot.directory()), ["memory.snap", "state.json"]);
}

#[test]
fn twenty_generations_of_snapshots_lose_nothing() {
    needs!(kvm);
    let (mut snapshot, mut said) = counting(4);
    for _ in 0..20 {
        let mut guest = snapshot.restore();
        guest.next_number("count");
        guest.next_number("count");
        guest.pause();
        snapshot = guest.snapshot();
        said += &guest.settled_output();
    }
    assert!(consecutive(&said, "count") >= 43);
}

#[test]
fn twenty_snapshots_of_a_running_guest_lose_no_access() {
    needs!(kvm);
    let mut guest = Guest::boot("ports");
    for _ in 0..20 {
        guest.next_number("round");
        let mut restored = guest.snapshot().restore();
        restored.next_number("round");
        restored.next_number("round");
        assert!(!restored.output().contains("WRONG"), "{}", restored.output());
    }
    guest.pause();
    consecutive(&guest.settled_output(), "round");
}

#[test]
fn memory_above_4_gib_is_restored() {
    needs!(kvm);
    let mut guest = Boot::small("count mib=8").memory("4G").start();
    guest.wait_for("count 40"); // a whole round: half of the pages lie below 3 GiB, half above 4 GiB
    guest.pause();
    let snapshot = guest.snapshot();
    let before = guest.kill();
    assert_eq!(std::fs::metadata(snapshot.memory_path()).unwrap().len(), 4 << 30);
    let mut restored = snapshot.restore();
    goes_on_from(&before, &mut restored);
    restored.resume();
    while restored.next_number("count") < 80 {}
}

#[test]
fn snapshot_of_a_paused_guest_leaves_it_paused() {
    needs!(kvm);
    let mut guest = Guest::boot("count");
    guest.wait_for("count 2");
    guest.pause();
    let before = guest.settled_output();
    let _snapshot = guest.snapshot();
    assert_eq!(guest.settled_output(), before);
    assert!(guest.ask("GET", "/", "").1.contains(r#""state":"Paused""#));
    guest.resume();
    guest.next_number("count");
}

#[test]
fn waiting_process_loads_a_snapshot_through_its_api() {
    needs!(kvm);
    let (snapshot, before) = counting(4);
    for resume in [false, true] {
        let mut guest = Guest::waiting();
        assert!(guest.ask("GET", "/", "").1.contains(r#""state":"Not started""#));
        let request = format!(r#"{{"snapshot_path":{:?},"resume_vm":{resume}}}"#, snapshot.directory());
        assert_eq!(guest.ask("PUT", "/snapshot/load", &request), (204, String::new()));
        if !resume {
            assert_eq!(guest.settled_output(), "");
            assert!(guest.ask("GET", "/", "").1.contains(r#""state":"Paused""#));
            guest.resume();
        }
        goes_on_from(&before, &mut guest);
        let (status, why) = guest.ask("PUT", "/snapshot/load", &request);
        assert!(status == 400 && why.contains("was started already"), "{why}");
    }
}

#[test]
fn four_vcpus_are_restored() {
    needs!(kvm);
    for (irqchip, cmdline, word) in [("kernel", "ticks", "ticks"), ("split", "count", "count")] {
        let mut guest = Boot::small(cmdline).vcpus(4).irqchip(irqchip).start();
        guest.next_number(word);
        let snapshot = guest.snapshot();
        assert_eq!(snapshot.state()["machine"]["vcpus"].as_array().unwrap().len(), 4);
        let mut restored = snapshot.restore();
        restored.next_number(word);
        restored.next_number(word);
    }
}
