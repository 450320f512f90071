//! A small guest gives memory to its balloon and takes it back, and does the same in clones.

use std::os::unix::fs::MetadataExt;

use volt_tests::{Boot, Guest, Snapshot, needs};

/// What the guest fills with a pattern.
const MIB: u64 = 12;
const PAGES_PER_MIB: u64 = 256;
const KIB_PER_MIB: u64 = 1024;

/// Asks the guest for so much, and waits until it has given it. Says how many of the pages that it took back
/// for this were empty, and how many were as it wrote them first.
fn ask_for(guest: &mut Guest, mib: u64) -> (u64, u64) {
    let change = format!(r#"{{"amount_mib":{mib}}}"#);
    assert_eq!(guest.ask("PATCH", "/balloon", &change), (204, String::new()));
    let found = (guest.next_number("empty"), guest.next_number("first"));
    assert_eq!(guest.next_number("balloon"), mib * PAGES_PER_MIB);
    found
}

/// Target and content of the balloon, in MiB.
fn balloon(guest: &Guest) -> (u64, u64) {
    let (status, answer) = guest.ask("GET", "/balloon/statistics", "");
    assert_eq!(status, 200, "{answer}");
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    (answer["target_mib"].as_u64().unwrap(), answer["actual_mib"].as_u64().unwrap())
}

/// The guest finds what it wrote in all that it has kept.
fn checks_what_it_kept(guest: &mut Guest, mib: u64) {
    guest.type_in("c");
    assert_eq!(guest.next_number("checked"), mib * PAGES_PER_MIB);
}

/// Checks that the host has so much more memory than when `guest` had `before`.
fn has_less(guest: &Guest, before: u64, mib: u64) {
    let now = guest.resident_kib();
    assert!(now + (mib - 1) * KIB_PER_MIB <= before, "{before} KiB before, {now} now");
}

#[test]
fn what_the_balloon_takes_is_the_hosts_and_costs_nothing_in_a_snapshot() {
    needs!(kvm);
    let mut guest = Boot::small(&format!("balloon mib={MIB}")).device(["--balloon"]).start();
    guest.wait_for("ready");
    let full = guest.resident_kib();
    assert_eq!(ask_for(&mut guest, 8), (0, 0));
    has_less(&guest, full, 8);
    let snapshot = guest.snapshot();
    let stored = std::fs::metadata(snapshot.memory_path()).unwrap().blocks() / 2;
    assert!((4 * KIB_PER_MIB..6 * KIB_PER_MIB).contains(&stored), "{stored} KiB");

    // Fresh memory comes back empty, and is memory.
    assert_eq!(ask_for(&mut guest, 0), (8 * PAGES_PER_MIB, 0));
    checks_what_it_kept(&mut guest, MIB);
    assert!(guest.resident_kib() + KIB_PER_MIB >= full);
}

#[test]
fn clones_have_the_balloon_of_the_snapshot_and_the_memory_of_its_base() {
    needs!(kvm);
    let mut guest = Boot::small(&format!("balloon mib={MIB}")).device(["--balloon"]).start();
    guest.wait_for("ready");
    ask_for(&mut guest, 8);
    let snapshot = guest.snapshot();
    drop(guest);
    let frozen = snapshot.fingerprint();
    let [mut one, mut other] = [snapshot.restore(), snapshot.restore()];
    for clone in [&mut one, &mut other] {
        checks_what_it_kept(clone, 4);
        assert_eq!(balloon(clone), (8, 8));
    }
    // One writes, and gives away what it wrote.
    one.type_in("w");
    assert_eq!(one.next_number("generation"), 2);
    let written = one.resident_kib();
    ask_for(&mut one, 10);
    has_less(&one, written, 2);
    assert_eq!(balloon(&one), (10, 10));
    checks_what_it_kept(&mut other, 4);
    // A snapshot of it has none of that, not even what the base has there.
    let stored = |snapshot: &Snapshot| std::fs::metadata(snapshot.memory_path()).unwrap().blocks() / 2;
    let late = one.snapshot();
    assert!(stored(&late) + KIB_PER_MIB < stored(&snapshot), "{} {}", stored(&late), stored(&snapshot));
    let mut of_late = late.restore();
    checks_what_it_kept(&mut of_late, 2);
    assert_eq!(ask_for(&mut of_late, 8), (2 * PAGES_PER_MIB, 0));
    // What it wrote is gone, and the base is there again.
    assert_eq!(ask_for(&mut one, 8), (0, 2 * PAGES_PER_MIB));
    for clone in [&mut one, &mut other] {
        assert_eq!(ask_for(clone, 0), (8 * PAGES_PER_MIB, 0));
        checks_what_it_kept(clone, MIB);
    }
    assert_eq!(snapshot.fingerprint(), frozen);
}

#[test]
fn pages_that_the_guest_reports_as_free_are_the_hosts() {
    needs!(kvm);
    let cmdline = format!("balloon mib={MIB} reporting=1");
    let mut guest = Boot::small(&cmdline).device(["--balloon", "reporting"]).start();
    guest.wait_for("ready");
    let gives_away_and_finds = |guest: &mut Guest, empty, first| {
        let before = guest.resident_kib();
        guest.type_in("r");
        assert_eq!(guest.next_number("reported"), 6 * PAGES_PER_MIB);
        has_less(guest, before, 6);
        guest.type_in("l");
        assert_eq!((guest.next_number("empty"), guest.next_number("first")), (empty, first));
        checks_what_it_kept(guest, MIB);
    };
    gives_away_and_finds(&mut guest, 6 * PAGES_PER_MIB, 0);
    let snapshot = guest.snapshot();
    drop(guest);
    let frozen = snapshot.fingerprint();
    let [mut clone, mut other] = [snapshot.restore(), snapshot.restore()];
    clone.type_in("w");
    assert_eq!(clone.next_number("generation"), 2);
    gives_away_and_finds(&mut clone, 0, 6 * PAGES_PER_MIB);
    checks_what_it_kept(&mut other, MIB);
    assert_eq!(snapshot.fingerprint(), frozen);
}
