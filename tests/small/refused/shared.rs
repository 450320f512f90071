//! Resources of the host that two VMs would have: a restore is refused and names the holder, unless it is
//! told to share them and the host can.

use std::fs;
use std::os::unix::net::UnixStream;

use serde_json::json;
use volt_tests::{Boot, Guest, Scratch, needs, wait_until};

const SIZE: u64 = 1 << 20;

/// A paused VM with a disk that it writes in place, and its snapshot's directory.
fn with_disk() -> (Guest, volt_tests::Snapshot) {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    fs::File::create(&image).and_then(|file| file.set_len(SIZE)).unwrap();
    let words = format!("id=root,path={}", image.display());
    let mut guest = Boot::small("count").scratch(&scratch).device(["--disk".to_owned(), words]).start();
    guest.wait_for("count 2");
    guest.pause();
    let snapshot = guest.snapshot();
    (guest, snapshot)
}

#[test]
fn writable_disk_of_another_vm_is_refused_unless_it_may_be_shared() {
    needs!(kvm, root);
    let (guest, snapshot) = with_disk();
    let holder = format!("used by another VM or process (process {}: ", guest.pid());
    snapshot.try_restore().refused(&["root: ", &holder, "count", "--disk id=root,path=", "--allow-shared"]);
    let mut second = snapshot.restore_as(&["--allow-shared"]);
    second.next_number("count");
    wait_until("the holder is named", || second.messages().contains(&holder));
    // The first VM still has its lock.
    drop(second);
    snapshot.try_restore().refused(&[&holder]);
}

#[test]
fn load_over_rest_shares_a_disk_if_it_may() {
    needs!(kvm, root);
    let (_guest, snapshot) = with_disk();
    let load = |allow: bool| {
        let request =
            json!({"snapshot_path": snapshot.directory(), "resume_vm": true, "allow_shared": allow});
        let waiting = Guest::waiting();
        let answer = waiting.ask("PUT", "/snapshot/load", &request.to_string());
        (waiting, answer)
    };
    let (_, (status, answer)) = load(false);
    assert!(status == 400 && answer.contains("allow_shared of /snapshot/load"), "{status} {answer}");
    let (_loaded, (status, answer)) = load(true);
    assert_eq!(status, 204, "{answer}");
}

#[test]
fn socket_of_another_vm_is_refused_or_taken_over() {
    needs!(kvm);
    for (option, words) in [("--console", ""), ("--vsock", "cid=5,socket=")] {
        let scratch = Scratch::new();
        let path = scratch.path("socket");
        let words = format!("{words}{}", path.display());
        let mut guest = Boot::small("count").scratch(&scratch).device([option.to_owned(), words]).start();
        guest.wait_for("count 2");
        let snapshot = guest.snapshot();
        let holder = format!("another process listens at this path (process {}: ", guest.pid());
        snapshot.try_restore().refused(&[path.to_str().unwrap(), &holder]);
        let mut second = snapshot.restore_as(&["--allow-shared"]);
        second.next_number("count");
        // The end of the first VM leaves the other's socket alone.
        drop(guest);
        UnixStream::connect(&path).unwrap_or_else(|error| panic!("{option}: {error}"));
        second.next_number("count");
    }
}
