//! A small guest draws random numbers by looking, and goes on with that in clones.

use volt_tests::{Boot, needs};

#[test]
fn random_numbers_come_and_differ_in_every_clone() {
    needs!(kvm);
    let mut guest = Boot::small("random").device(["--rng"]).start();
    assert_eq!(guest.next_number("drawn"), 1);
    guest.pause();
    let snapshot = guest.snapshot();
    let mut drawn: Vec<String> = Vec::new();
    for mut clone in [snapshot.restore(), snapshot.restore()] {
        // The first may have been drawn before the snapshot, and only be told after it.
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
fn a_device_that_a_snapshot_has_and_the_configuration_has_not_is_refused() {
    needs!(kvm);
    let mut guest = Boot::small("random").device(["--rng"]).start();
    guest.next_number("drawn");
    guest.pause();
    let snapshot = guest.snapshot().copy();
    snapshot.edit(|state| {
        state["config"]["devices"] = serde_json::json!({});
    });
    snapshot.try_restore().refused(&["state of rng", "this machine has not"]);
}
