//! VMs end before another program can change the memory file that they run from.

use std::fs;
use std::os::unix::fs::MetadataExt;

use volt_tests::damage::open_to_change;
use volt_tests::{Boot, Guest, Snapshot, needs, wait_until};

/// Returns a snapshot and a clone that runs from it.
fn clone() -> (Snapshot, Guest) {
    let mut guest = Boot::small("count mib=16").start();
    guest.wait_for("count 10");
    let snapshot = guest.snapshot();
    let mut clone = snapshot.restore();
    clone.next_number("count");
    (snapshot, clone)
}

/// Waits until `count` VMs hold a lease on the memory file. They take it some time after they begin to run.
fn held_by(snapshot: &Snapshot, count: usize) {
    let inode = format!(":{} ", fs::metadata(snapshot.memory_path()).unwrap().ino());
    let is_held = |line: &&str| line.contains("LEASE") && line.contains(&inode);
    wait_until("the memory file has its leases", || {
        fs::read_to_string("/proc/locks").unwrap().lines().filter(is_held).count() == count
    });
}

/// Checks that the guest has crashed with an error that names the file.
fn crashed(guest: &mut Guest, snapshot: &Snapshot, why: &str) {
    let outcome = guest.wait_exit();
    assert_eq!(outcome.status, 5, "{outcome:?}");
    for words in [snapshot.memory_path().to_str().unwrap(), why] {
        assert!(outcome.stderr.contains(words), "{words}: {}", outcome.stderr);
    }
    assert!(!guest.output().contains("WRONG"), "{}", guest.output());
}

#[test]
fn guest_survives_the_removal_of_its_snapshot() {
    needs!(kvm);
    let (snapshot, mut clone) = clone();
    snapshot.remove();
    let from = clone.next_number("count");
    while clone.next_number("count") < from + 150 {}
    assert!(!clone.output().contains("WRONG"), "{}", clone.output());
}

#[test]
fn guest_ends_before_its_memory_can_be_overwritten_or_truncated() {
    needs!(kvm);
    let (snapshot, mut guest) = clone();
    let mut second = snapshot.restore_as(&["--paused"]);
    let before = fs::read(snapshot.memory_path()).unwrap();
    held_by(&snapshot, 2);
    // Waits until both have ended.
    let writer = open_to_change(snapshot.memory_path());
    crashed(&mut guest, &snapshot, "is about to be changed by another program");
    crashed(&mut second, &snapshot, "is about to be changed by another program");
    assert!(fs::read(snapshot.memory_path()).unwrap() == before);
    // A lease does not stop a writer that opened the file before.
    let mut late = snapshot.restore();
    late.next_number("count");
    writer.set_len(0).unwrap();
    crashed(&mut late, &snapshot, "guest memory");
}
