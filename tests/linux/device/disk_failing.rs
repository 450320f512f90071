//! A disk that fails on the host: the guest gets an I/O error, the log a line, and other devices go on.

use std::fs::File;

use volt_tests::{Boot, Guest, Namespace, Scratch, needs, wait_until};

use crate::device::images::blank;

/// Gives an order that must end with an I/O error.
fn fails(guest: &mut Guest, order: &str) {
    let name = order.split(' ').next().unwrap();
    let answer = guest.type_in(&format!("{order}\n")).next_line(&format!("error {name}: "));
    assert!(answer.contains("I/O error"), "{answer}");
}

/// Starts a guest with a disk that is going to fail and other sound devices.
fn with_others(failing: &str, scratch: &Scratch, namespace: &Namespace) -> Guest {
    let other = blank(scratch, "other", 16);
    let words = format!("path={},id=other", other.display());
    let boot = Boot::linux().device(["--disk", failing, "--disk", &words, "--rng"]);
    // Kernel messages about errors would mix with the answers.
    let mut guest = boot.cmdline_words("loglevel=1").inside(namespace).start();
    guest.wait_until_ready();
    guest
}

/// Checks that the guest's other devices work.
fn lives_on(guest: &mut Guest) {
    guest.order("put /dev/vdb 1024 5");
    guest.order("verify /dev/vdb 1024 5");
    guest.order("random");
}

#[test]
fn full_host_disk_fails_writes_until_it_has_room_again() {
    needs!(linux, root);
    for engine in ["sync", "io_uring"] {
        let scratch = Scratch::new();
        let base = blank(&scratch, "base", 32);
        let small = scratch.path("small");
        std::fs::create_dir(&small).unwrap();
        let words =
            format!("path={},layer={},engine={engine}", base.display(), small.join("layer").display());
        let namespace = Namespace::small_disk(&small, 6 << 10);
        let mut guest = with_others(&words, &scratch, &namespace);
        guest.order("put /dev/vda 1024 1");
        fails(&mut guest, "put /dev/vda 16384 2");
        wait_until("the error is logged", || guest.stderr().contains("cannot write"));
        lives_on(&mut guest);
        // The guest frees space itself.
        guest.order("discard /dev/vda");
        guest.order("put /dev/vda 1024 3");
        guest.order("verify /dev/vda 1024 3");
    }
}

#[test]
fn shrunk_image_fails_requests_beyond_its_end() {
    needs!(linux, root);
    for engine in ["sync", "io_uring"] {
        let scratch = Scratch::new();
        let image = blank(&scratch, "image", 16);
        let words = format!("path={},engine={engine}", image.display());
        let mut guest = with_others(&words, &scratch, &Namespace::Same);
        guest.order("put /dev/vda 8192 1");
        let file = File::options().write(true).open(&image).unwrap();
        file.set_len(4 << 20).unwrap();
        fails(&mut guest, "verify /dev/vda 8192 1");
        fails(&mut guest, "put /dev/vda 8192 2");
        wait_until("the error is logged", || guest.stderr().contains("cannot read"));
        guest.order("verify /dev/vda 2048 2");
        lives_on(&mut guest);
        assert_eq!(file.metadata().unwrap().len(), 4 << 20, "{engine}: the guest made the file longer");
        // The disk works again once the image has its old length.
        file.set_len(16 << 20).unwrap();
        guest.order("put /dev/vda 8192 3");
        guest.order("verify /dev/vda 8192 3");
        wait_until("the failed write is logged", || guest.stderr().contains("cannot write"));
    }
}
