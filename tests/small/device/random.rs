//! A small guest and its clones draw random numbers from a polled device.

use volt_tests::{Boot, needs};

#[test]
fn random_numbers_differ_in_every_clone() {
    needs!(kvm);
    let mut guest = Boot::small("random").device(["--rng"]).start();
    assert_eq!(guest.next_number("drawn"), 1);
    guest.pause();
    let snapshot = guest.snapshot();
    let mut drawn: Vec<String> = Vec::new();
    for mut clone in [snapshot.restore(), snapshot.restore()] {
        // The first number may have been drawn before the snapshot and printed after it.
        let number = clone.next_number("drawn");
        assert_eq!(clone.next_number("drawn"), number + 1);
        drawn.push(clone.next_line("0x"));
    }
    guest.resume();
    guest.next_number("drawn");
    drawn.push(guest.next_line("0x"));
    assert!(drawn[0] != drawn[1] && drawn[1] != drawn[2] && drawn[0] != drawn[2], "{drawn:?}");
}

#[test]
fn device_state_without_its_configuration_is_refused() {
    needs!(kvm);
    let mut guest = Boot::small("random").device(["--rng"]).start();
    guest.next_number("drawn");
    guest.pause();
    let snapshot = guest.snapshot().copy();
    snapshot.edit(|state| {
        state["config"]["devices"] = serde_json::json!({});
    });
    snapshot.try_restore().refused(&["the state names rng", "this machine lacks"]);
}
