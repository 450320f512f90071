//! The balloon: memory that goes back to the host, when it is asked for, when the guest frees it, and when
//! the guest needs it back.

use volt_tests::{Boot, Guest, needs, wait_until};

/// Of most guests here, as little as does: each page of it is a fault on an emulated processor.
const MEMORY: &str = "128M";

/// A number of the balloon's statistics; 0 while it has not come.
fn number(guest: &Guest, name: &str) -> u64 {
    let (status, answer) = guest.ask("GET", "/balloon/statistics", "");
    assert_eq!(status, 200, "{answer}");
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    answer[name].as_u64().unwrap_or(0)
}

fn set_target(guest: &Guest, mib: u64) {
    assert_eq!(guest.ask("PATCH", "/balloon", &format!(r#"{{"amount_mib":{mib}}}"#)).0, 204);
}

fn inflate_to(guest: &Guest, mib: u64) {
    set_target(guest, mib);
    wait_until(&format!("the balloon holds {mib} MiB"), || number(guest, "actual_mib") == mib);
}

/// The guest's memory under test is whole.
fn is_whole(guest: &mut Guest) {
    guest.order("check");
    assert!(!guest.output().contains("corrupt"), "{}", guest.output());
}

#[test]
fn a_balloon_takes_memory_and_gives_it_back() {
    needs!(linux);
    let mut guest = Boot::linux().memory(MEMORY).device(["--balloon", "statistics=1"]).start();
    guest.wait_until_ready();
    // All of what the guest has is the host's, and then free again in the guest, but not on the host.
    guest.order("fill 48");
    guest.order("fill 4");
    let full = guest.resident_kib();
    assert!(full > 48 << 10, "{full}");
    inflate_to(&guest, 70);
    let inflated = guest.resident_kib();
    assert!(inflated + (30 << 10) < full, "{full} KiB resident, then {inflated}");
    wait_until("the guest tells of its memory", || number(&guest, "total_memory") > 0);
    is_whole(&mut guest);
    let snapshot = guest.snapshot();
    inflate_to(&guest, 0);
    guest.order("fill 48");
    is_whole(&mut guest);
    // A restored guest keeps its balloon as it was.
    let mut clone = snapshot.restore();
    wait_until("the clone's API is there", || number(&clone, "actual_mib") == 70);
    assert_eq!(number(&clone, "target_mib"), 70);
    is_whole(&mut clone);
    inflate_to(&clone, 0);
    clone.order("fill 48");
    is_whole(&mut clone);
}

#[test]
fn what_the_guest_frees_is_the_hosts_again_within_seconds() {
    needs!(linux);
    let mut guest = Boot::linux().memory("512M").device(["--balloon", "reporting"]).start();
    guest.wait_until_ready();
    guest.order("fill 256");
    // Some of these pages the guest had touched while it booted, so the growth says less than the sum.
    let filled = guest.resident_kib();
    assert!(filled > 256 << 10, "the guest holds 256 MiB, and {filled} KiB are resident");
    guest.order("fill 0");
    // Linux looks for free pages to report every 2 s.
    // It reports blocks of 2 MiB that are free as a whole: what it has allocated in between keeps some.
    wait_until("200 MiB are given back", || guest.resident_kib() + (200 << 10) < filled);
    // And the guest has it again when it wants it.
    guest.order("fill 256");
    is_whole(&mut guest);
}

#[test]
fn a_clones_balloon_touches_neither_the_snapshot_nor_another_clone() {
    needs!(linux);
    let mut guest = Boot::linux().memory(MEMORY).device(["--balloon", "reporting"]).start();
    guest.wait_until_ready();
    guest.order("fill 32");
    let snapshot = guest.snapshot();
    drop(guest);
    let untouched = snapshot.fingerprint();
    let mut clones = [snapshot.restore(), snapshot.restore()];
    for clone in &mut clones {
        is_whole(clone);
    }
    let [giving, keeping] = &mut clones;
    let before = giving.resident_kib();
    // By freeing what the base holds, and by the balloon, until little else is left.
    giving.order("fill 4");
    inflate_to(giving, 70);
    wait_until("memory goes back", || giving.resident_kib() + (20 << 10) < before);
    is_whole(giving);
    // What comes back out of the balloon has the base's content on the host, which is nobody's business in
    // the guest.
    inflate_to(giving, 0);
    giving.order("fill 48");
    is_whole(giving);
    is_whole(keeping);
    is_whole(&mut snapshot.restore());
    // A page that was given back is not in the next snapshot, and not missed.
    is_whole(&mut giving.snapshot().restore());
    assert_eq!(snapshot.fingerprint(), untouched);
}

#[test]
fn the_guest_takes_memory_out_of_the_balloon_before_it_runs_out_of_it() {
    needs!(linux);
    let mut guest = Boot::linux().memory(MEMORY).device(["--balloon", "deflate-on-oom"]).start();
    guest.wait_until_ready();
    inflate_to(&guest, 70);
    guest.order("fill 64");
    is_whole(&mut guest);
    let left = number(&guest, "actual_mib");
    assert!(left < 60, "{left} MiB in the balloon beside 64 MiB filled, of {MEMORY}");
}
