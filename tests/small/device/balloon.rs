//! A small guest inflates and deflates its balloon, in clones, too.

use std::os::unix::fs::MetadataExt;

use volt_tests::{Boot, Exposition, Guest, Snapshot, needs};

/// MiB that the guest fills with a pattern.
const MIB: u64 = 12;
const PAGES_PER_MIB: u64 = 256;
const KIB_PER_MIB: u64 = 1024;

/// Sets the balloon's target and waits until the guest has reached it. Returns how many of the pages that the
/// guest took back were empty, and how many had their first content.
fn ask_for(guest: &mut Guest, mib: u64) -> (u64, u64) {
    let change = format!(r#"{{"amount_mib":{mib}}}"#);
    assert_eq!(guest.ask("PATCH", "/balloon", &change), (204, String::new()));
    let found = (guest.next_number("empty"), guest.next_number("first"));
    assert_eq!(guest.next_number("balloon"), mib * PAGES_PER_MIB);
    found
}

/// Returns target and content of the balloon in MiB.
fn balloon(guest: &Guest) -> (u64, u64) {
    let (status, answer) = guest.ask("GET", "/balloon/statistics", "");
    assert_eq!(status, 200, "{answer}");
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    (answer["target_mib"].as_u64().unwrap(), answer["actual_mib"].as_u64().unwrap())
}

/// Checks that the guest finds its pattern in the memory outside the balloon.
fn checks_what_it_kept(guest: &mut Guest, mib: u64) {
    guest.type_in("c");
    assert_eq!(guest.next_number("checked"), mib * PAGES_PER_MIB);
}

/// Returns the resident memory in KiB before a change of the balloon. The program's own code counts too, so
/// a change to the present target maps it first.
fn resident_before(guest: &Guest) -> u64 {
    let (target, _) = balloon(guest);
    let same = format!(r#"{{"amount_mib":{target}}}"#);
    assert_eq!(guest.ask("PATCH", "/balloon", &same), (204, String::new()));
    guest.resident_kib()
}

/// Checks that the guest uses at least `mib` less than `before` KiB.
fn has_less(guest: &Guest, before: u64, mib: u64) {
    let now = guest.resident_kib();
    assert!(now + (mib - 1) * KIB_PER_MIB <= before, "{before} KiB before, {now} now");
}

#[test]
fn inflated_balloon_returns_memory_and_shrinks_the_snapshot() {
    needs!(kvm);
    let mut guest = Boot::small(&format!("balloon mib={MIB}")).device(["--balloon"]).start();
    guest.wait_for("ready");
    let full = resident_before(&guest);
    assert_eq!(ask_for(&mut guest, 8), (0, 0));
    has_less(&guest, full, 8);
    let metrics = Exposition::parse(&guest.ask("GET", "/metrics", "").1);
    let given_back = metrics.get("volt_vmm_memory_given_back_bytes_total");
    assert_eq!(given_back, f64::from(8 << 20));
    let snapshot = guest.snapshot();
    let stored = std::fs::metadata(snapshot.memory_path()).unwrap().blocks() / 2;
    assert!((4 * KIB_PER_MIB..6 * KIB_PER_MIB).contains(&stored), "{stored} KiB");

    // The balloon gives back empty pages that can be written.
    assert_eq!(ask_for(&mut guest, 0), (8 * PAGES_PER_MIB, 0));
    checks_what_it_kept(&mut guest, MIB);
    assert!(guest.resident_kib() + KIB_PER_MIB >= full);
}

#[test]
fn clones_keep_the_balloon_and_do_not_affect_each_other() {
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
    // One clone writes, and inflates its balloon with the written pages.
    one.type_in("w");
    assert_eq!(one.next_number("generation"), 2);
    let written = resident_before(&one);
    ask_for(&mut one, 10);
    has_less(&one, written, 2);
    assert_eq!(balloon(&one), (10, 10));
    checks_what_it_kept(&mut other, 4);
    // Its snapshot has no page of the balloon, not even the base's.
    let stored = |snapshot: &Snapshot| std::fs::metadata(snapshot.memory_path()).unwrap().blocks() / 2;
    let late = one.snapshot();
    assert!(stored(&late) + KIB_PER_MIB < stored(&snapshot), "{} {}", stored(&late), stored(&snapshot));
    let mut of_late = late.restore();
    checks_what_it_kept(&mut of_late, 2);
    assert_eq!(ask_for(&mut of_late, 8), (2 * PAGES_PER_MIB, 0));
    // The clone's writes are gone, and the pages have the base's content again.
    assert_eq!(ask_for(&mut one, 8), (0, 2 * PAGES_PER_MIB));
    for clone in [&mut one, &mut other] {
        assert_eq!(ask_for(clone, 0), (8 * PAGES_PER_MIB, 0));
        checks_what_it_kept(clone, MIB);
    }
    assert_eq!(snapshot.fingerprint(), frozen);
}

#[test]
fn pages_reported_as_free_return_to_the_host() {
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
