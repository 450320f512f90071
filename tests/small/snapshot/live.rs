//! Snapshots of a guest that does not stop for them. The guest checks every page of its memory again and
//! again, and changes it: a page that is missing in a snapshot, or from another time than the rest, is one
//! that a restored guest complains about.

use volt_tests::{Boot, Guest, Snapshot, needs};

/// The guest goes through all of its memory once more, at least. Each count is 64 pages.
fn goes_through(guest: &mut Guest, mib: u64) {
    let first = guest.next_number("count");
    while guest.next_number("count") < first + 2 * mib * 256 / 64 {}
    assert!(!guest.output().contains("WRONG"), "{}", guest.output());
}

fn generations(mut guest: Guest, mib: u64, count: usize) -> Snapshot {
    let mut last = None;
    for _ in 0..count {
        goes_through(&mut guest, mib);
        let snapshot = guest.snapshot();
        goes_through(&mut guest, mib);
        guest = snapshot.restore();
        last = Some(snapshot);
    }
    goes_through(&mut guest, mib);
    last.expect("one at least")
}

#[test]
fn a_guest_that_writes_all_the_time_is_whole_in_every_snapshot() {
    needs!(kvm);
    generations(Boot::small("count mib=24").start(), 24, 6);
}

#[test]
fn the_same_guest_is_snapshotted_again_and_again() {
    needs!(kvm);
    let mut guest = Boot::small("count mib=16").start();
    guest.wait_for("count");
    let snapshots: Vec<_> = (0..6).map(|_| guest.snapshot()).collect();
    goes_through(&mut guest, 16);
    for snapshot in snapshots {
        goes_through(&mut snapshot.restore(), 16);
    }
}

#[test]
fn above_3_gib_too() {
    needs!(kvm);
    let guest = Boot::small("count mib=16").memory("3500M").start();
    let snapshot = generations(guest, 16, 2);
    let blocks = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(snapshot.memory_path()).unwrap());
    assert!(blocks * 512 < 64 << 20, "{blocks} blocks for 16 MiB that were touched");
}
