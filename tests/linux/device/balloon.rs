//! The balloon: memory that goes back to the host, when it is asked for, when the guest frees it, and when
//! the guest needs it back.

use volt_tests::{Boot, Guest, needs, wait_until};

/// Little memory, because each page costs a fault on an emulated processor.
const MEMORY: &str = "128M";
/// Command that ends a request for hints (virtio 1.3, section 5.5.6.7).
const DONE: u64 = 1;

/// Returns a number of the balloon, or 0 if there is none.
fn number(guest: &Guest, name: &str) -> u64 {
    let (status, answer) = guest.ask("GET", "/v1/vm/balloon", "");
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

/// Checks the guest's memory under test.
fn is_whole(guest: &mut Guest) {
    guest.order("check");
    assert!(!guest.output().contains("corrupt"), "{}", guest.output());
}

#[test]
fn balloon_takes_memory_and_gives_it_back() {
    needs!(linux);
    let mut guest = Boot::linux().memory(MEMORY).device(["--balloon", "statistics=1"]).start();
    guest.wait_until_ready();
    // The guest uses most of its memory and frees it, but the host does not get it back.
    guest.order("fill 48");
    guest.order("fill 4");
    let full = guest.resident_kib();
    assert!(full > 48 << 10, "{full}");
    // Without deflate-on-oom, Linux no longer counts the pages of the balloon as its own.
    let total_mib = || {
        let (status, answer) = guest.ask("GET", "/balloon/statistics", "");
        assert_eq!(status, 200, "{answer}");
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        answer["total_memory"].as_u64().map(|bytes| bytes >> 20)
    };
    wait_until("the guest reports its memory", || total_mib().is_some_and(|mib| mib > 80));
    inflate_to(&guest, 70);
    let inflated = guest.resident_kib();
    assert!(inflated + (30 << 10) < full, "{full} KiB resident, then {inflated}");
    wait_until("the guest reports less memory", || total_mib().is_some_and(|mib| (1..60).contains(&mib)));
    is_whole(&mut guest);
    let snapshot = guest.snapshot();
    inflate_to(&guest, 0);
    guest.order("fill 48");
    is_whole(&mut guest);
    // A restored guest keeps its balloon.
    let mut clone = snapshot.restore();
    wait_until("the clone reports its balloon", || number(&clone, "actual_mib") == 70);
    assert_eq!(number(&clone, "target_mib"), 70);
    is_whole(&mut clone);
    inflate_to(&clone, 0);
    clone.order("fill 48");
    is_whole(&mut clone);
}

#[test]
fn freed_memory_returns_to_the_host_within_seconds() {
    needs!(linux);
    let mut guest = Boot::linux().memory("512M").device(["--balloon", "reporting"]).start();
    guest.wait_until_ready();
    guest.order("fill 256");
    // The guest touched some of these pages during its boot, so the sum is compared and not the growth.
    let filled = guest.resident_kib();
    assert!(filled > 256 << 10, "the guest holds 256 MiB, and {filled} KiB are resident");
    guest.order("fill 0");
    // Every 2 s Linux reports blocks of 2 MiB that are wholly free. Allocations in between keep some blocks.
    wait_until("200 MiB are given back", || guest.resident_kib() + (200 << 10) < filled);
    // The guest can use the memory again.
    guest.order("fill 256");
    is_whole(&mut guest);
}

#[test]
fn hinted_memory_returns_to_the_host_with_and_without_an_acknowledgement() {
    needs!(linux);
    let mut guest = Boot::linux().memory("256M").device(["--balloon", "hinting"]).start();
    guest.wait_until_ready();
    let command = |guest: &Guest| {
        let (status, answer) = guest.ask("GET", "/balloon/hinting/status", "");
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str::<serde_json::Value>(&answer).unwrap()["host_cmd"].as_u64().unwrap()
    };
    for acknowledges in [true, false] {
        guest.order("fill 128");
        let filled = guest.resident_kib();
        guest.order("fill 0");
        let body = format!(r#"{{"acknowledge_on_stop": {acknowledges}}}"#);
        assert_eq!(guest.ask("PATCH", "/balloon/hinting/start", &body).0, 204);
        wait_until("64 MiB are given back", || guest.resident_kib() + (64 << 10) < filled);
        if acknowledges {
            wait_until("the guest may use the pages", || command(&guest) == DONE);
        } else {
            assert!(command(&guest) > DONE, "the guest may not use the pages yet");
            assert_eq!(guest.ask("PATCH", "/balloon/hinting/stop", "").0, 204);
            assert_eq!(command(&guest), DONE);
        }
        guest.order("fill 128");
        is_whole(&mut guest);
    }
}

#[test]
fn balloon_of_a_clone_does_not_affect_the_snapshot_or_another_clone() {
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
    // The clone gives memory back by freeing pages of the base and by the balloon.
    giving.order("fill 4");
    inflate_to(giving, 70);
    wait_until("memory goes back", || giving.resident_kib() + (20 << 10) < before);
    is_whole(giving);
    // Pages that leave the balloon may have the base's content, which the guest does not rely on.
    inflate_to(giving, 0);
    giving.order("fill 48");
    is_whole(giving);
    is_whole(keeping);
    is_whole(&mut snapshot.restore());
    // The next snapshot lacks the pages that were given back, and its guest does not miss them.
    is_whole(&mut giving.snapshot().restore());
    assert_eq!(snapshot.fingerprint(), untouched);
}

#[test]
fn guest_short_of_memory_deflates_its_balloon() {
    needs!(linux);
    let mut guest = Boot::linux().memory(MEMORY).device(["--balloon", "deflate-on-oom"]).start();
    guest.wait_until_ready();
    inflate_to(&guest, 70);
    guest.order("fill 64");
    is_whole(&mut guest);
    let left = number(&guest, "actual_mib");
    assert!(left < 60, "{left} MiB in the balloon beside 64 MiB filled, of {MEMORY}");
}
