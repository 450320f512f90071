//! Acts of a running VM: snapshots, diffs and packed snapshots. The guest runs on, with its memory and disk.

use std::path::Path;

use volt_tests::faults::{Call, Caller, Fault, Injector, Sample, Side};
use volt_tests::{Boot, Guest, Outcome, Scratch, Snapshot, needs};

use crate::left::Store;

/// Slots of the guest with a disk, and sectors between them: more than a cluster.
const SLOTS: u64 = 8;
const FAR: u64 = 136;

/// A kind of guest, and what its VM does.
struct Act<'a> {
    name: &'a str,
    side: Side,
    guest: Kind,
    options: &'a [&'a str],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Checks 1 MiB of memory in a loop.
    Counting,
    /// Checks its records on a disk with a layer.
    Disk,
}

impl Kind {
    fn start(self, injector: Option<&Injector>) -> Guest {
        let boot = match self {
            Self::Counting => Boot::small("count mib=1"),
            Self::Disk => {
                let scratch = Scratch::new();
                let base = blank(&scratch);
                let words = format!("path={},layer={}", base.display(), scratch.fresh("layer").display());
                let boot = Boot::small(&format!("records verify=1 slots={SLOTS} stride={FAR}"));
                boot.device(["--disk".to_owned(), words]).scratch(&scratch)
            }
        };
        let mut guest = injector.into_iter().fold(boot, Boot::faults).start();
        self.goes_on(&mut guest);
        guest
    }

    /// Waits until the guest has checked all of its memory or disk.
    fn goes_on(self, guest: &mut Guest) {
        let (name, more) = match self {
            Self::Counting => ("count", 9),
            Self::Disk => ("synced", SLOTS + 4),
        };
        let first = guest.next_number(name);
        while guest.next_number(name) < first + more {}
        assert!(!guest.output().contains("WRONG"), "{}", guest.output());
    }

    /// Checks a snapshot by its files and by a restored guest.
    fn is_right(self, made: &Snapshot) {
        made.verify().succeeded();
        self.goes_on(&mut made.restore());
    }
}

/// Makes an image with record 0 in each slot.
fn blank(scratch: &Scratch) -> std::path::PathBuf {
    let path = scratch.fresh("base");
    let words = 0..(SLOTS + 1) * FAR * 64;
    std::fs::write(&path, words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>()).unwrap();
    path
}

impl Act<'_> {
    fn is_diff(&self) -> bool {
        self.options.contains(&"--diff")
    }

    fn start(&self, injector: Option<&Injector>) -> Started {
        let mut guest = self.guest.start(injector);
        let base = self.is_diff().then(|| guest.snapshot());
        self.guest.goes_on(&mut guest);
        Started { guest, _base: base }
    }

    fn take(&self, guest: &Guest, to: &Path) -> Outcome {
        guest.try_snapshot_as(to, self.options)
    }

    /// Pauses a guest with a disk for the snapshot, because a fault of its own writes is another act.
    fn pause(&self, guest: &Guest) {
        if self.guest == Kind::Disk {
            guest.pause();
        }
    }

    /// Lets a guest go on that was paused for the snapshot.
    fn resume(&self, guest: &Guest) {
        if self.guest == Kind::Disk {
            guest.resume();
        }
    }

    /// Takes a snapshot with each fault.
    fn each(&self) {
        let (injector, store) = (Injector::of(self.side), Store::new(&Scratch::new()));
        let mut started = self.start(Some(&injector));
        // The base of the last diff stays where it is.
        let mut killed = None;
        self.pause(&started.guest);
        let (outcome, calls) = injector.record(|| self.take(&started.guest, &store.place()));
        outcome.succeeded();
        self.guest.is_right(&store.made().expect("it succeeded"));
        store.clear("without a fault");
        self.resume(&started.guest);
        for case in Sample::of(self.name, &calls, self.side == Side::Writes) {
            self.pause(&started.guest);
            let (outcome, hit) = injector.inject(&case, || self.take(&started.guest, &store.place()));
            let is_killed = case.fault.kills() && hit.is_some();
            if is_killed || hit.as_ref().is_some_and(loses_a_layer) {
                // A VM whose opener was killed runs on, and takes no more snapshots.
                if case.fault == Fault::Kill && hit.as_ref().is_some_and(|hit| hit.caller != Caller::Other) {
                    self.resume(&started.guest);
                    self.guest.goes_on(&mut started.guest);
                }
                killed = Some(std::mem::replace(&mut started, self.start(Some(&injector))));
            } else {
                self.resume(&started.guest);
            }
            assert!(started.guest.is_running(), "{case}: the VM ended: {:?}", started.guest.wait_exit());
            let again = || self.take(&started.guest, &store.place());
            store.check(&case, hit.as_ref(), &outcome, again, |made| self.guest.is_right(made));
            self.guest.goes_on(&mut started.guest);
            let messages = started.guest.messages();
            assert!(!messages.contains("panicked"), "{case}: {messages}");
            drop(killed.take());
        }
    }
}

/// Tells whether the call syncs a running disk or writes its map. After a failure the VM refuses snapshots of
/// the disk.
fn loses_a_layer(hit: &Call) -> bool {
    hit.object.contains("/layer-") || hit.object.contains("/base-")
}

/// A guest with the base of its diffs.
struct Started {
    guest: Guest,
    _base: Option<Snapshot>,
}

const PACKED: [&str; 4] = ["--compress", "lz4", "--chunk-size", "16K"];

#[test]
fn snapshot_is_whole_or_absent_after_a_failed_write() {
    needs!(kvm);
    Act { name: "snapshot", side: Side::Writes, guest: Kind::Counting, options: &[] }.each();
}

#[test]
fn snapshot_is_whole_or_absent_after_a_failed_read() {
    needs!(kvm);
    Act { name: "snapshot", side: Side::Reads, guest: Kind::Counting, options: &[] }.each();
}

#[test]
fn packed_snapshot_is_whole_or_absent_after_a_failed_write() {
    needs!(kvm);
    Act { name: "packed snapshot", side: Side::Writes, guest: Kind::Counting, options: &PACKED }.each();
}

#[test]
fn packed_snapshot_is_whole_or_absent_after_a_failed_read() {
    needs!(kvm);
    Act { name: "packed snapshot", side: Side::Reads, guest: Kind::Counting, options: &PACKED }.each();
}

#[test]
fn diff_is_whole_or_absent_after_a_failed_write() {
    needs!(kvm);
    Act { name: "diff", side: Side::Writes, guest: Kind::Counting, options: &["--diff"] }.each();
}

#[test]
fn diff_is_whole_or_absent_after_a_failed_read() {
    needs!(kvm);
    Act { name: "diff", side: Side::Reads, guest: Kind::Counting, options: &["--diff"] }.each();
}

#[test]
fn snapshot_with_a_disk_is_whole_or_absent_after_a_failed_write() {
    needs!(kvm);
    Act { name: "snapshot with a layer", side: Side::Writes, guest: Kind::Disk, options: &[] }.each();
}

#[test]
fn snapshot_with_a_disk_is_whole_or_absent_after_a_failed_read() {
    needs!(kvm);
    Act { name: "snapshot with a layer", side: Side::Reads, guest: Kind::Disk, options: &[] }.each();
}
