//! A small guest polls a disk and goes on with it after a restore.

use std::path::Path;

use volt_tests::{Boot, Guest, Outcome, Scratch, needs};

#[test]
fn disk_is_written_and_read_back_also_by_a_clone() {
    needs!(kvm);
    let scratch = Scratch::new();
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

/// The guest polls its disk, so the other file has the same content when it comes.
#[test]
fn disk_gets_another_file_while_the_vm_is_paused() {
    needs!(kvm);
    for engine in ["sync", "io_uring"] {
        let scratch = Scratch::new();
        let (first, second) = (scratch.fresh("first"), scratch.fresh("second"));
        std::fs::File::create(&first).unwrap().set_len(64 * 512).unwrap();
        let words = format!("path={},id=root,engine={engine}", first.display());
        let mut guest = Boot::small("disk again=1 sectors=64").device(["--disk".into(), words]).start();
        while guest.next_number("sector") < 70 {}
        guest.pause();
        std::fs::copy(&first, &second).unwrap();
        let change = |guest: &Guest, path: &Path| {
            let body = serde_json::json!({"drive_id": "root", "path_on_host": path});
            guest.ask("PATCH", "/drives/root", &body.to_string())
        };
        for (bad, why) in [(scratch.fresh("missing"), "No such file"), ("/dev/null".into(), "/dev/null")] {
            let (status, answer) = change(&guest, &bad);
            assert!(status == 400 && answer.contains(why), "{status} {answer}");
        }
        assert_eq!(change(&guest, &second), (204, String::new()));
        let (_, config) = guest.ask("GET", "/vm/config", "");
        assert!(config.contains(second.to_str().unwrap()) && !config.contains(first.to_str().unwrap()));
        let before = [&first, &second].map(|path| std::fs::read(path).unwrap());
        guest.resume();
        let number = guest.next_number("sector");
        while guest.next_number("sector") < number + 70 {}
        assert!(!guest.output().contains("WRONG"), "{}", guest.output());
        guest.pause();
        assert!(std::fs::read(&first).unwrap() == before[0], "the old file has a new write");
        assert!(std::fs::read(&second).unwrap() != before[1], "the new file has no write");
        // The file's own path reads its length again, and another file that got its name replaces it.
        std::fs::OpenOptions::new().write(true).open(&second).unwrap().set_len(128 * 512).unwrap();
        assert_eq!(change(&guest, &second).0, 204);
        let renamed = scratch.fresh("renamed");
        std::fs::copy(&second, &renamed).unwrap();
        std::fs::rename(&renamed, &second).unwrap();
        assert_eq!(change(&guest, &second).0, 204);
        guest.resume();
        let number = guest.next_number("sector");
        let of_renamed = std::fs::read(&second).unwrap();
        while guest.next_number("sector") < number + 70 {}
        guest.pause();
        assert!(std::fs::read(&second).unwrap() != of_renamed, "the guest writes to a file without a name");
        // A snapshot names the new file, and the old one is free.
        let snapshot = guest.snapshot();
        assert_eq!(snapshot.state()["config"]["devices"]["disks"][0]["path"], second.to_str().unwrap());
        assert_eq!(change(&guest, &first).0, 204);
    }
}

/// The guest checks its last write to a sector before it writes there again. Each sector has its own cluster.
#[test]
fn live_snapshot_has_disk_and_memory_of_one_instant() {
    needs!(kvm);
    for engine in ["sync", "io_uring"] {
        let scratch = Scratch::new();
        let (base, layer) = (scratch.fresh("base"), scratch.fresh("layer"));
        std::fs::write(&base, vec![7; 3 << 20]).unwrap();
        let words = format!("path={},layer={},id=root,engine={engine}", base.display(), layer.display());
        let disk = ["--disk".to_owned(), words];
        let mut guest = Boot::small("disk sectors=48 stride=128 again=1").device(disk).start();
        while guest.next_number("sector") < 100 {}
        for _ in 0..3 {
            let (full, diff) = (guest.snapshot(), guest.snapshot_as(&["--diff", "--max-pause", "60000"]));
            for snapshot in [&full, &diff] {
                let mut clone = snapshot.restore();
                let number = clone.next_number("sector");
                while clone.next_number("sector") < number + 100 {}
                assert!(!clone.output().contains("WRONG"), "{}", clone.output());
            }
            // A clone continues over the layer of the snapshot.
            guest = full.restore();
            let number = guest.next_number("sector");
            while guest.next_number("sector") < number + 60 {}
        }
        assert!(!guest.output().contains("WRONG"), "{}", guest.output());
    }
}

#[test]
fn clones_write_to_their_own_layers_over_that_of_the_snapshot() {
    needs!(kvm);
    let scratch = Scratch::new();
    let (base, layer) = (scratch.fresh("base"), scratch.fresh("layer"));
    std::fs::write(&base, vec![7; 1 << 20]).unwrap();
    let words = format!("path={},layer={},id=root", base.display(), layer.display());
    let mut guest = Boot::small("disk").device(["--disk".to_owned(), words]).start();
    while guest.next_number("sector") < 70 {}
    guest.pause();
    let snapshot = guest.snapshot();
    let frozen = snapshot.fingerprint();
    let of_snapshot = || std::fs::read(snapshot.directory().join("disk-root.layer")).unwrap();
    let before = of_snapshot();
    // The clones see the disk of the pause while the original writes on.
    guest.resume();
    let mut clones = [snapshot.restore(), snapshot.restore()];
    for clone in &mut clones {
        let number = clone.next_number("sector");
        while clone.next_number("sector") < number + 70 {}
    }
    guest.next_number("sector");
    let again = clones[0].snapshot();
    let mut third = again.restore();
    third.next_number("sector");
    for guest in [&guest, &clones[0], &clones[1], &third] {
        assert!(!guest.output().contains("WRONG"), "{}", guest.output());
    }
    assert_eq!((of_snapshot(), snapshot.fingerprint()), (before, frozen));
    assert_eq!(std::fs::read(&base).unwrap(), vec![7; 1 << 20]);
}

#[test]
fn clone_puts_its_layer_at_the_given_path() {
    needs!(kvm);
    let scratch = Scratch::new();
    let (base, layer, mine) = (scratch.fresh("base"), scratch.fresh("layer"), scratch.fresh("mine"));
    std::fs::write(&base, vec![7; 1 << 20]).unwrap();
    let words = format!("path={},layer={},id=root", base.display(), layer.display());
    let mut guest = Boot::small("disk").device(["--disk".to_owned(), words]).start();
    guest.next_number("sector");
    let snapshot = guest.snapshot();
    let at = |place: &Path| format!("id=root,layer={}", place.display());
    let mut clone = snapshot.restore_as(&["--disk", &at(&mine)]);
    clone.next_number("sector");
    assert!(mine.exists());
    let refused = |words: &str, expected: &[&str]| {
        let dir = snapshot.directory().to_str().unwrap();
        Outcome::of(["restore", dir, "--disk", words]).refused(expected);
    };
    refused(&at(&mine), &["create layer", "mine", "exists"]);
    refused("id=other,layer=/l", &["disks", "\"other\""]);
    // A restore that fails leaves no layer behind.
    let third = scratch.fresh("third");
    std::fs::write(&base, vec![8; 1 << 20]).unwrap();
    refused(&at(&third), &["root", "base"]);
    assert!(!third.exists());
    std::fs::remove_file(snapshot.directory().join("disk-root.layer")).unwrap();
    snapshot.try_restore().refused(&["disk-root.layer", "is missing"]);
}

#[test]
fn changed_limit_lasts_until_a_clone_gets_another() {
    needs!(kvm);
    let scratch = Scratch::new();
    let image = scratch.fresh("image");
    std::fs::File::create(&image).unwrap().set_len(64 * 512).unwrap();
    let words = format!("path={},id=root,bandwidth=8M,ops=5000+7", image.display());
    let mut guest = Boot::small("disk").device(["--disk".to_owned(), words]).start();
    guest.next_number("sector");
    let limit = |guest: &Guest| -> serde_json::Value {
        let (_, config) = guest.ask("GET", "/vm/config", "");
        serde_json::from_str::<serde_json::Value>(&config).unwrap()["drives"][0]["rate_limiter"].take()
    };
    let ops = |size| serde_json::json!({"size": size, "refill_time": 1000, "one_time_burst": 7});
    assert_eq!(limit(&guest)["ops"], ops(5000));
    let change = r#"{"drive_id":"root","rate_limiter":{"bandwidth":{"size":0,"refill_time":0}}}"#;
    assert_eq!(guest.ask("PATCH", "/drives/root", change).0, 204);
    assert_eq!(limit(&guest), serde_json::json!({"ops": ops(5000)}));
    guest.pause();
    let snapshot = guest.snapshot();
    drop(guest);
    let mut clone = snapshot.restore();
    assert_eq!(limit(&clone), serde_json::json!({"ops": ops(5000)}));
    clone.next_number("sector");
    drop(clone);
    let mut clone = snapshot.restore_as(&["--disk", "id=root,ops=4000+7,changed=accept"]);
    assert_eq!(limit(&clone), serde_json::json!({"ops": ops(4000)}));
    clone.next_number("sector");
}
