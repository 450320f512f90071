//! Small guests drive virtio devices by looking, and go on with them after a restore.

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
        let number = clone.next_number("drawn");
        drawn.push(clone.next_line("0x"));
        assert_eq!(clone.next_number("drawn"), number + 1);
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

#[test]
fn a_disk_is_written_read_back_and_goes_on_in_a_clone() {
    needs!(kvm);
    let scratch = volt_tests::Scratch::new();
    let image = scratch.fresh("image");
    std::fs::File::create(&image).unwrap().set_len(64 * 512).unwrap();
    let mut guest =
        Boot::small("disk").device(["--disk".into(), format!("path={}", image.display())]).start();
    while guest.next_number("sector") < 70 {}
    guest.pause();
    let snapshot = guest.snapshot();
    assert!(std::fs::read(&image).unwrap().chunks(512).all(|sector| sector.iter().any(|byte| *byte != 0)));
    // The original has the file locked.
    snapshot.try_restore().refused(&["disk", "image"]);
    drop(guest);
    let mut restored = snapshot.restore();
    let number = restored.next_number("sector");
    while restored.next_number("sector") < number + 70 {}
    assert!(!restored.output().contains("WRONG"), "{}", restored.output());
}

#[test]
fn two_clones_write_to_layers_of_their_own_over_one_base() {
    needs!(kvm);
    let scratch = volt_tests::Scratch::new();
    let (base, mine) = (scratch.fresh("base"), scratch.fresh("layer"));
    std::fs::write(&base, vec![7; 1 << 20]).unwrap();
    let words = format!("path={},layer={},id=root", base.display(), mine.display());
    let mut guest = Boot::small("disk").device(["--disk".to_owned(), words]).start();
    while guest.next_number("sector") < 5 {}
    assert_eq!(std::fs::read(&base).unwrap(), vec![7; 1 << 20]);
    assert!(std::fs::metadata(&mine).unwrap().len() > 0);
}
