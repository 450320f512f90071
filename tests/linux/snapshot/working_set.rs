//! The working set of a Linux is recorded and read ahead for its clones.

use serde_json::Value;
use volt_tests::{Boot, Guest, needs, wait_until};

/// Checks that the guest finds all of its pattern.
fn checks(guest: &mut Guest) {
    let answer = guest.order("check");
    assert!(answer.iter().any(|line| line.starts_with("generation ")), "{answer:?}");
    guest.next_number("count");
    assert!(!guest.output().contains("corrupt"), "{}", guest.output());
}

fn held(guest: &Guest) -> Value {
    let (status, answer) = guest.ask("GET", "/v1/vm/memory", "");
    assert_eq!(status, 200, "{answer}");
    serde_json::from_str(&answer).unwrap()
}

#[test]
fn clones_prefetch_the_recorded_working_set() {
    needs!(linux);
    let mut guest = Boot::linux().vcpus(2).start();
    guest.wait_until_ready();
    guest.order("fill 16");
    guest.order("count");
    guest.next_number("count");
    let snapshots = [&[][..], &["--compress", "lz4"]].map(|options| guest.snapshot_as(options));
    drop(guest);
    for snapshot in &snapshots {
        let mut first = snapshot.restore_as(&["--record", "api"]);
        checks(&mut first);
        let (status, recorded) = first.ask("PUT", "/v1/vm/record", "");
        let recorded: Value = serde_json::from_str(&recorded).unwrap();
        let pages = recorded["pages"].as_u64().unwrap();
        assert!(status == 200 && pages > 16 << 8, "{recorded}");
        checks(&mut first);
        drop(first);
        let mut clone = snapshot.restore_as(&["--paused"]);
        wait_until("the working set is read ahead", || held(&clone)["prefetch"]["is_over"] == true);
        clone.resume();
        checks(&mut clone);
        let held = held(&clone);
        assert_eq!(held["prefetch"]["read"].as_u64(), Some(pages), "{held}");
        if let Some(ahead) = held["chunks"]["ahead"].as_u64() {
            // Two runs of Linux touch mostly, but not exactly, the same pages.
            let [touched, in_vain] =
                ["on_touch", "in_vain"].map(|what| held["chunks"][what].as_u64().unwrap());
            assert!(touched < ahead / 2 && in_vain < ahead / 2, "{held}");
        }
        let mut again = snapshot.restore_as(&["--record", "console"]);
        again.next_number("count");
        wait_until("the recording is logged", || again.stderr().contains("until console; the previous set"));
    }
}
