//! A small guest inflates and deflates its balloon, in clones, too.

use std::os::unix::fs::MetadataExt;

use serde_json::{Value, json};
use volt_tests::{Boot, Exposition, Guest, Snapshot, needs, small_guest};

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
    let (status, answer) = guest.ask("GET", "/v1/vm/balloon", "");
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
    let (status, refusal) = guest.ask("GET", "/balloon/statistics", "");
    assert!(status == 400 && refusal.contains("balloon device statistics were not enabled"), "{refusal}");
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

/// Sends a request, and returns its answer in JSON.
fn ask(guest: &Guest, (method, path): (&str, &str), body: &Value, status: u16) -> Value {
    let (found, answer) = guest.ask(method, path, &body.to_string());
    assert_eq!(found, status, "{method} {path} {body}: {answer}");
    serde_json::from_str(&answer).unwrap_or(Value::Null)
}

#[test]
fn balloon_is_configured_and_hints_by_firecrackers_requests() {
    needs!(kvm);
    let mut guest = Guest::waiting();
    let (balloon, statistics) = ("/balloon", "/balloon/statistics");
    ask(&guest, ("GET", balloon), &Value::Null, 400);
    ask(&guest, ("PATCH", balloon), &json!({"amount_mib": 1}), 400);
    ask(&guest, ("PATCH", statistics), &json!({"stats_polling_interval_s": 1}), 400);
    let config = json!({"amount_mib": 4, "deflate_on_oom": true, "stats_polling_interval_s": 9,
                        "free_page_hinting": true});
    ask(&guest, ("PUT", balloon), &config, 204);
    ask(&guest, ("PATCH", balloon), &json!({"amount_mib": 0}), 204);
    ask(&guest, ("PATCH", statistics), &json!({"stats_polling_interval_s": 60}), 204);
    let described = json!({"amount_mib": 0, "deflate_on_oom": true, "stats_polling_interval_s": 60,
                           "free_page_hinting": true, "free_page_reporting": false});
    assert_eq!(ask(&guest, ("GET", balloon), &Value::Null, 200), described);
    let boot = json!({"kernel_image_path": small_guest(), "boot_args": format!("balloon mib={MIB}")});
    ask(&guest, ("PUT", "/boot-source"), &boot, 204);
    ask(&guest, ("PUT", "/machine-config"), &json!({"vcpu_count": 1, "mem_size_mib": 64}), 204);
    ask(&guest, ("PUT", "/actions"), &json!({"action_type": "InstanceStart"}), 204);
    guest.wait_for("ready");
    assert_eq!(ask(&guest, ("GET", balloon), &Value::Null, 200), described);
    ask_for(&mut guest, 2);
    let found = ask(&guest, ("GET", statistics), &Value::Null, 200);
    assert_eq!((&found["target_pages"], &found["actual_mib"]), (&json!(512), &json!(2)));

    let host_command = |guest: &Guest| {
        let status = ask(guest, ("GET", "/balloon/hinting/status"), &Value::Null, 200);
        assert_eq!(status["guest_cmd"], Value::Null, "the guest does not know hints");
        status["host_cmd"].as_u64().unwrap()
    };
    let keeps_pages = |guest: &Guest| {
        let state = guest.snapshot().state();
        state["machine"]["devices"]["balloon"]["device"]["hinting"]["keeps_pages"] == true
    };
    assert_eq!(host_command(&guest), 0);
    let start = ("PATCH", "/balloon/hinting/start");
    for (request, (body, keeps)) in (2..).zip([
        (json!({}), false),
        (json!({"acknowledge_on_stop": true}), false),
        (json!({"acknowledge_on_stop": false}), true),
    ]) {
        ask(&guest, start, &body, 204);
        assert_eq!((host_command(&guest), keeps_pages(&guest)), (request, keeps), "{body}");
    }
    ask(&guest, ("PATCH", "/balloon/hinting/stop"), &Value::Null, 204);
    assert_eq!(host_command(&guest), 1);
    checks_what_it_kept(&mut guest, MIB - 2);
}
