//! Two vCPUs write to the same pages at the same time. Each checks its own half of each page and the order of
//! the other's writes, so the guest reports a page that is missing or from another instant.

use volt_tests::{
    Boot, Guest, Recorder, Scratch, Snapshot, needs, numbers, small_guest, wait_until, without_generation,
};
use volt_vmm::{IrqchipKind, RestoreOptions, SnapshotKind, SnapshotOptions, Store, Vm};

const MIB: u64 = 2;
/// Numbers that a vCPU counts in one pass over its memory, 64 pages a number.
const ROUND: u64 = MIB * 256 / 64;

fn pair() -> Boot<'static> {
    Boot::small(&format!("pair mib={MIB}")).vcpus(2)
}

/// Waits until both vCPUs have gone twice through all of their memory.
fn both_go_through(guest: &mut Guest) {
    for vcpu in ["first", "second"] {
        let from = guest.next_number(vcpu);
        while guest.next_number(vcpu) < from + 2 * ROUND {}
    }
    assert!(!guest.output().contains("WRONG"), "{}", guest.output());
}

#[test]
fn live_snapshots_of_two_writers_are_consistent() {
    needs!(kvm);
    for irqchip in ["split", "kernel"] {
        let mut guest = pair().irqchip(irqchip).start();
        for _ in 0..3 {
            both_go_through(&mut guest);
            let snapshot = guest.snapshot();
            both_go_through(&mut guest);
            guest = snapshot.restore();
        }
        both_go_through(&mut guest);
    }
}

#[test]
fn diffs_miss_no_page_of_two_writers() {
    needs!(kvm);
    let mut guest = pair().start();
    guest.wait_for("second");
    let _base = guest.snapshot();
    let diffs: Vec<Snapshot> = (0..4)
        .map(|_| {
            both_go_through(&mut guest);
            guest.snapshot_as(&["--diff"])
        })
        .collect();
    for diff in &diffs {
        both_go_through(&mut diff.restore());
    }
    // A full snapshot and a diff of one instant have the same memory.
    guest.pause();
    let (diff, full) = (guest.snapshot_as(&["--diff"]), guest.snapshot());
    let memory = |snapshot: &Snapshot| std::fs::read(snapshot.memory_path()).unwrap();
    assert!(memory(&diff.merged()) == memory(&full));
}

#[test]
fn pauses_hold_both_vcpus_and_lose_no_write() {
    needs!(kvm);
    let mut guest = pair().start();
    guest.wait_for("second");
    for _ in 0..50 {
        guest.pause();
        guest.resume();
    }
    both_go_through(&mut guest);
    guest.pause();
    // The second vCPU is paused, too, so both snapshots have its last write.
    let (one, other) = (guest.snapshot(), guest.snapshot());
    let memory = |snapshot: &Snapshot| std::fs::read(snapshot.memory_path()).unwrap();
    assert!(memory(&one) == memory(&other), "memory changes in a pause");
    guest.resume();
    both_go_through(&mut guest);
}

#[test]
fn rewinds_undo_writes_of_two_writers() {
    needs!(kvm);
    let scratch = Scratch::new();
    let store = Store::open(&format!("file://{}", scratch.directory().display())).unwrap();
    let snapshot = |vm: &Vm, name: &str| {
        vm.snapshot_with(&store, name, &SnapshotOptions::default().kind(SnapshotKind::Full)).unwrap();
    };
    let goes_through = |said: &Recorder| {
        for vcpu in ["first", "second"] {
            let start = said.text().rfind('\n').map_or(0, |at| at + 1);
            // The rewind may have cut the first number.
            let seen = || numbers(&said.text()[start..], vcpu);
            wait_until("both vCPUs go on", || {
                let seen = seen();
                seen.len() > 2 && seen[seen.len() - 1] > seen[1] + ROUND
            });
        }
        assert!(!said.text().contains("WRONG"), "{}", said.text());
    };
    let said = Recorder::default();
    let builder = Vm::builder().kernel(small_guest()).cmdline(format!("pair mib={MIB}")).memory_mib(64);
    let vm = builder.vcpus(2).irqchip(IrqchipKind::Split).console(said.console()).start().unwrap();
    goes_through(&said);
    snapshot(&vm, "warm");
    drop(vm);
    let warm = volt_vmm::Snapshot::open(&store, "warm").unwrap();
    let said = Recorder::default();
    let options = RestoreOptions::default().console(said.console()).rewindable();
    let vm = warm.restore_with(options).unwrap();
    for _ in 0..10 {
        goes_through(&said);
        vm.rewind().unwrap();
    }
    vm.pause().unwrap();
    vm.rewind().unwrap();
    snapshot(&vm, "again");
    let memory =
        |name: &str| without_generation(std::fs::read(scratch.path(name).join("memory.snap")).unwrap());
    assert!(memory("again") == memory("warm"), "byte for byte");
    vm.resume().unwrap();
    goes_through(&said);
}
