//! Live snapshots of a guest that checks and changes each page of its memory in a loop. A restored guest
//! reports each page that is missing or from another instant.

use volt_tests::{Boot, Guest, Snapshot, needs};

/// Waits until the guest has gone twice through all of its memory, 64 pages a number.
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
fn writing_guest_is_consistent_in_each_live_snapshot() {
    needs!(kvm);
    generations(Boot::small("count mib=24").start(), 24, 6);
}

#[test]
fn repeated_live_snapshots_of_one_guest_are_consistent() {
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
fn live_snapshot_with_memory_above_3_gib_is_consistent() {
    needs!(kvm);
    let guest = Boot::small("count mib=16").memory("3500M").start();
    let snapshot = generations(guest, 16, 2);
    let blocks = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(snapshot.memory_path()).unwrap());
    assert!(blocks * 512 < 64 << 20, "{blocks} blocks for 16 MiB that were touched");
}
