//! The pages that a restored guest touches first are recorded until a marker and kept beside the snapshot.

use std::path::Path;

use serde_json::Value;
use volt_tests::scratch::list;
use volt_tests::vsock::{connect, listen};
use volt_tests::{Boot, Guest, Scratch, Snapshot, limited, needs, wait_until};
use volt_vmm::snapshot::WorkingSet;

use crate::snapshot::restoring::goes_on_from;

pub(crate) const MIB: u64 = 8;
/// Pages that the guest goes through in a loop.
const PAGES: u64 = MIB * 256;
/// An upper bound for the other pages that the guest touches: code, stack, page tables.
const FEW: u64 = 64;

/// Boots a guest that has written all of its memory.
fn counting() -> Guest {
    let mut guest = Guest::boot(&format!("count mib={MIB}"));
    while guest.next_number("count") < MIB * 4 + 4 {}
    guest
}

/// Takes a snapshot of each kind. Returns them with the guest's output before each.
pub(crate) fn of_every_kind() -> Vec<(Snapshot, String)> {
    let mut guest = counting();
    let mut found = Vec::new();
    let mut take = |guest: &mut Guest, options: &[&str]| {
        guest.pause();
        found.push((guest.snapshot_as(options), guest.settled_output()));
        guest.resume();
        for _ in 0..MIB * 2 {
            guest.next_number("count");
        }
    };
    for options in [&[][..], &["--compress", "lz4", "--chunk-size", "16K"]] {
        take(&mut guest, options);
        // The diff has half of the guest's memory.
        take(&mut guest, &["--diff"]);
    }
    take(&mut guest, &["--compress", "zstd", "--chunk-size", "2M"]);
    found
}

/// Waits until the guest has gone twice through all of its memory.
pub(crate) fn goes_on(guest: &mut Guest) {
    let first = guest.next_number("count");
    while guest.next_number("count") < first + 2 * MIB * 4 {}
    assert!(!guest.output().contains("WRONG"), "{}", guest.output());
}

/// Returns the API's answer in JSON.
pub(crate) fn answer(guest: &Guest, method: &str, path: &str) -> Value {
    let (status, answer) = guest.ask(method, path, "");
    assert_eq!(status, 200, "{answer}");
    serde_json::from_str(&answer).unwrap()
}

/// Returns the working set beside a snapshot.
fn set(snapshot: &Snapshot) -> Option<WorkingSet> {
    let state = snapshot.state();
    let id = state["metadata"]["id"].as_str().unwrap();
    WorkingSet::open(snapshot.directory(), id, 64 << 20).unwrap()
}

/// Records a guest that goes through all of its memory. Returns the API's answer.
pub(crate) fn record_all(snapshot: &Snapshot) -> Value {
    let mut guest = snapshot.restore_as(&["--record", "api"]);
    goes_on(&mut guest);
    let recorded = answer(&guest, "PUT", "/v1/vm/record");
    // The recording is over, the guest goes on, and a second request gets the same answer.
    goes_on(&mut guest);
    assert_eq!(answer(&guest, "PUT", "/v1/vm/record"), recorded);
    recorded
}

/// Waits for the message of a recording that ends by itself.
fn said(guest: &Guest) -> String {
    wait_until("the end of the recording is logged", || guest.stderr().contains("recorded"));
    guest.stderr()
}

#[test]
fn recording_has_the_touched_pages_in_order_over_any_memory() {
    needs!(kvm, page_faults);
    for (snapshot, before) in of_every_kind() {
        let (files, untouched) = (list(snapshot.directory()), fingerprint(&snapshot));
        let recorded = record_all(&snapshot);
        assert_eq!(list(snapshot.directory()), with_set(&files));
        assert_eq!(fingerprint(&snapshot), untouched);
        let (pages, set) = (recorded["pages"].as_u64().unwrap(), set(&snapshot).unwrap());
        assert!((PAGES..PAGES + FEW).contains(&pages), "{recorded}");
        assert_eq!((recorded["marker"].as_str(), &recorded["before"]), (Some("api"), &Value::Null));
        let ranges = set.page_ranges().len() as u64;
        assert_eq!((set.pages(), ranges), (pages, recorded["runs"].as_u64().unwrap()));
        // The guest touches its memory in ascending order from its position and wraps. First touches of
        // code and data interrupt the order.
        let mut longest: Vec<u64> = set.page_ranges().iter().map(|run| (run.end - run.start) >> 12).collect();
        longest.sort_unstable();
        assert!(longest.iter().rev().take(5).sum::<u64>() + FEW > PAGES, "{longest:?}");
        let inspected: Value = serde_json::from_str(&snapshot.inspect(&["--json"])).unwrap();
        assert_eq!(inspected["working_set"]["pages"], recorded["pages"]);
        assert!(snapshot.inspect(&[]).contains(&format!("{pages} pages first")));
        snapshot.verify().succeeded();
        goes_on_from(&before, &mut snapshot.restore());
    }
}

fn with_set(files: &[String]) -> Vec<String> {
    let mut files = files.to_vec();
    files.push("working-set".to_owned());
    files.sort();
    files
}

/// Returns the content of the files of a snapshot or diff.
fn fingerprint(snapshot: &Snapshot) -> Vec<Vec<u8>> {
    let read = |path: &Path| std::fs::read(path).ok();
    [snapshot.state_path(), snapshot.memory_path(), snapshot.diff_path()]
        .iter()
        .filter_map(|path| read(path))
        .collect()
}

#[test]
fn recording_reports_the_hit_rate_of_the_last_one() {
    needs!(kvm, page_faults);
    let snapshot = counting().snapshot();
    record_all(&snapshot);
    let again = record_all(&snapshot);
    assert!(again["before"]["hit_rate"].as_f64().unwrap() > 0.98, "{again}");
    assert!(again["before"]["in_vain"].as_u64().unwrap() < FEW, "{again}");
    // Before its first line the guest touches a few pages.
    let guest = snapshot.restore_as(&["--record", "console"]);
    let said = said(&guest);
    assert!(said.contains("until console; the previous set had 100.0 % of them, and "), "{said}");
    let few = answer(&guest, "PUT", "/v1/vm/record");
    let pages = few["pages"].as_u64().unwrap();
    assert!((2..64 + FEW).contains(&pages), "{few}");
    assert_eq!(few["before"]["in_vain"].as_u64().unwrap(), again["pages"].as_u64().unwrap() - pages);
    assert_eq!(set(&snapshot).unwrap().pages(), pages);
}

#[test]
fn recording_ends_with_the_first_vsock_connection_of_either_side() {
    needs!(kvm, page_faults);
    let scratch = Scratch::new();
    let socket = scratch.fresh("vsock");
    let words = format!("cid=5,socket={}", socket.display());
    let mut guest = Boot::small("vsock").device(["--vsock".to_owned(), words]).start();
    guest.next_number("cid");
    let snapshot = guest.snapshot();
    drop(guest);
    // The guest's lines are no marker here.
    let mut guest = snapshot.restore_as(&["--record", "vsock"]);
    guest.next_number("cid");
    assert_eq!(set(&snapshot), None);
    let _stream = connect(&socket, 1000);
    assert!(said(&guest).contains("until vsock"));
    drop(guest);
    let first = set(&snapshot).unwrap();
    let mut guest = snapshot.restore_as(&["--record", "vsock"]);
    guest.next_number("cid");
    let listener = listen(&socket, 2000);
    guest.type_in("c");
    let _stream = limited("the guest connects", || listener.accept()).unwrap();
    assert!(said(&guest).contains("until vsock; the previous set"));
    assert!(first.pages() > 2 && set(&snapshot).unwrap().pages() > 2);
    counting().snapshot().try_restore_as(&["--record", "vsock"]).refused(&["record", "has no vsock"]);
}

#[test]
fn recording_ends_after_a_running_time() {
    needs!(kvm, page_faults);
    let snapshot = counting().snapshot_as(&["--compress", "lz4"]);
    let guest = snapshot.restore_as(&["--record", "50ms", "--paused"]);
    assert!(guest.ask("GET", "/", "").1.contains("Paused"));
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(set(&snapshot), None, "the time of a pause counts");
    guest.resume();
    assert!(said(&guest).contains("until 50ms"));
    assert!(set(&snapshot).unwrap().pages() > 2);
}

#[test]
fn rest_load_takes_a_record_field() {
    needs!(kvm, page_faults);
    let snapshot = counting().snapshot();
    let mut guest = Guest::waiting();
    assert!(guest.ask("PUT", "/v1/vm/record", "").1.contains("has not been started"));
    let load = format!(
        r#"{{"snapshot_path":"{}","resume_vm":true,"record":"console"}}"#,
        snapshot.directory().display()
    );
    assert_eq!(guest.ask("PUT", "/snapshot/load", &load), (204, String::new()));
    assert!(said(&guest).contains("until console"));
    goes_on(&mut guest);
    let (status, why) = snapshot.restore().ask("PUT", "/v1/vm/record", "");
    assert!(status == 400 && why.contains("this VM is not recorded"), "{status} {why}");
}

#[test]
fn guest_is_recorded_only_if_it_reaches_its_marker() {
    needs!(kvm, page_faults);
    let mut guest = Guest::boot("deadline megacycles=3000");
    guest.wait_for("armed");
    let snapshot = guest.snapshot();
    drop(guest);
    // The guest wakes, prints a line, and powers off.
    let files = list(snapshot.directory());
    let outcome = snapshot.restore_as(&["--record", "console"]).wait_exit();
    assert!(outcome.succeeded().stderr.contains("pages") && set(&snapshot).is_some(), "{outcome:?}");
    std::fs::remove_file(snapshot.directory().join("working-set")).unwrap();
    let outcome = snapshot.restore_as(&["--record", "api"]).wait_exit();
    outcome.succeeded().failed_with(&[
        "cannot record the working set",
        "the VM ended before the event that ends the recording (api)",
    ]);
    assert_eq!(list(snapshot.directory()), files);
}

#[test]
fn recording_with_a_pager_or_unpack_is_refused() {
    needs!(kvm, page_faults);
    let snapshot = counting().snapshot_as(&["--compress", "lz4"]);
    for options in [["--record", "api", "--pager", "shared"].as_slice(), &["--record", "console", "--unpack"]]
    {
        let mut all = options.to_vec();
        all.extend(["--api-socket", "/tmp/none-of-these.sock"]);
        snapshot
            .try_restore_as(&all)
            .refused(&["record: a recording fills guest memory page by page in this process"]);
    }
    let outcome = snapshot.try_restore_as(&["--record", "soon"]);
    assert!(outcome.status == 2 && outcome.stderr.contains("write console, vsock, api"), "{outcome:?}");
    assert_eq!(set(&snapshot), None);
}
