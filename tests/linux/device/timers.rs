//! Sleepers across a snapshot wake on time.

use std::time::Duration;

use volt_tests::{Boot, needs, wait_until};

#[test]
fn armed_deadline_fires_after_the_restore() {
    needs!(linux);
    let mut guest = Boot::linux().start();
    guest.wait_until_ready();
    guest.order("deadline 2000");
    guest.order("sleep 2500");
    guest.pause();
    let snapshot = guest.snapshot();
    assert!(!guest.output().contains("took"), "the snapshot came too late");
    drop(guest);
    // Guest time stands still meanwhile, so no sleeper is late.
    std::thread::sleep(Duration::from_secs(3));
    let restored = snapshot.restore();
    let woken: u64 = restored.line_of_all("deadline 2000 took ").parse().unwrap();
    let slept: u64 = restored.line_of_all("slept 2500 took ").parse().unwrap();
    assert!((2000..5000).contains(&woken) && (2500..5500).contains(&slept), "{woken} {slept}");
}

#[test]
fn deadline_that_passes_during_the_snapshot_fires() {
    needs!(linux);
    let mut guest = Boot::linux().start();
    guest.wait_until_ready();
    for ms in [50, 100, 200, 400] {
        guest.order(&format!("deadline {ms}"));
        guest.pause();
        let said = guest.settled_output();
        guest = guest.snapshot().restore();
        // The sleeper wakes before or after the snapshot, and the snapshot may cut its line.
        let line = format!("deadline {ms} took ");
        wait_until("the sleeper wakes", || (said.clone() + &guest.output()).contains(&line));
    }
}
