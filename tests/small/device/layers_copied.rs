//! Copies of layers during a snapshot: none of an idle layer in the pause, and a bounded number in memory.

use std::os::unix::fs::MetadataExt;

use volt_tests::{Recorder, Scratch, needs};
use volt_vmm::{RestoreOptions, Snapshot, Store, Vm, VmConfig};

/// Clusters of 64 KiB that the guest fills with a sector each.
const CLUSTERS: u64 = 512;

/// The original has a layer of its own, and the clone has one over that of the snapshot.
#[test]
fn pause_copies_nothing_of_an_idle_layer() {
    needs!(kvm);
    for engine in ["sync", "io_uring"] {
        let scratch = Scratch::new();
        let (base, layer) = (scratch.fresh("base"), scratch.fresh("layer"));
        std::fs::File::create(&base).unwrap().set_len(CLUSTERS << 16).unwrap();
        let store = Store::open(&format!("file://{}", scratch.directory().display())).unwrap();
        let mut config = VmConfig::new(volt_tests::small_guest());
        config.boot.cmdline = format!("disk sectors={CLUSTERS} stride=128 until={CLUSTERS}");
        config.memory_mib = 64;
        let disk = serde_json::json!({"id": "root", "path": base, "layer": layer, "engine": engine});
        config.devices.disks.push(serde_json::from_value(disk).unwrap());
        let recorder = Recorder::default();
        let vm = Vm::builder().config(config).console(recorder.console()).start().unwrap();
        recorder.wait_for("done\n");
        assert_eq!(vm.snapshot(&store, "first").unwrap().disk_pages_in_pause, 0, "{engine}");
        let first = Snapshot::open(&store, "first").unwrap();
        let clone = first.restore_with(RestoreOptions::default()).unwrap();
        assert_eq!(clone.snapshot(&store, "second").unwrap().disk_pages_in_pause, 0, "{engine}");
        for name in ["first", "second"] {
            let copy = scratch.path(name).join("disk-root.layer");
            assert!(std::fs::metadata(copy).unwrap().blocks() * 512 >= CLUSTERS << 16, "{engine} {name}");
        }
    }
}

/// The guest writes to its layer as fast as it can during the snapshots.
#[test]
fn clusters_copied_to_memory_are_bounded() {
    needs!(kvm);
    const MIB: u64 = 192;
    let scratch = Scratch::new();
    let (base, layer) = (scratch.fresh("base"), scratch.fresh("layer"));
    std::fs::File::create(&base).unwrap().set_len(MIB << 20).unwrap();
    let store = Store::open(&format!("file://{}", scratch.directory().display())).unwrap();
    let mut config = VmConfig::new(volt_tests::small_guest());
    config.boot.cmdline = format!("disk-churn mib={MIB}");
    config.memory_mib = 64;
    let disk = serde_json::json!({"id": "root", "path": base, "layer": layer});
    config.devices.disks.push(serde_json::from_value(disk).unwrap());
    let recorder = Recorder::default();
    let vm = Vm::builder().config(config).console(recorder.console()).start().unwrap();
    recorder.wait_for("ready\n");
    let mut held = 0;
    for name in ["first", "second"] {
        let course = vm.snapshot(&store, name).unwrap();
        assert!(course.disk_pages_in_memory * 4096 <= 128 << 20, "{course:?}");
        held += course.disk_pages_in_memory;
    }
    assert!(held > 0, "the guest wrote nothing while its disk was copied");
    Snapshot::open(&store, "second").unwrap().restore_with(RestoreOptions::default()).unwrap();
}
