//! A rewind resets a restored VM to its snapshot in place.

use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use volt_tests::damage::open_to_change;
use volt_tests::{
    Boot, Guest, KvmShim, Outcome, Recorder, Scratch, needs, numbers, small_guest, wait_until,
    without_generation,
};
use volt_vmm::config::devices::DiskConfig;
use volt_vmm::config::{Devices, VmConfig};
use volt_vmm::{
    IrqchipKind, Progress, RestoreOptions, RunState, Snapshot, SnapshotKind, SnapshotOptions, Store, Vm,
};

/// A directory for snapshots.
struct Snapshots {
    scratch: Scratch,
    store: Store,
}

impl Snapshots {
    fn new() -> Self {
        let scratch = Scratch::new();
        let store = Store::open(&format!("file://{}", scratch.directory().display())).unwrap();
        Self { scratch, store }
    }

    /// Snapshots `vm` as `name`.
    fn snapshot(&self, vm: &Vm, name: &str, kind: SnapshotKind) -> Snapshot {
        vm.snapshot_with(&self.store, name, &SnapshotOptions::default().kind(kind)).unwrap();
        Snapshot::open(&self.store, name).unwrap()
    }

    fn memory(&self, name: &str) -> Vec<u8> {
        without_generation(fs::read(self.scratch.path(name).join("memory.snap")).unwrap())
    }

    /// Returns the vCPUs' registers in a snapshot.
    fn registers(&self, name: &str) -> Vec<serde_json::Value> {
        let text = fs::read(self.scratch.path(name).join("state.json")).unwrap();
        let state: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let vcpus = state["machine"]["vcpus"].as_array().unwrap();
        vcpus.iter().flat_map(|vcpu| [vcpu["regs"].clone(), vcpu["sregs"].clone()]).collect()
    }
}

/// Boots a guest that has checked and changed `mib` of memory.
fn counting(mib: u64, memory_mib: u64, vcpus: u8, irqchip: IrqchipKind) -> Vm {
    let said = Recorder::default();
    let builder = Vm::builder().kernel(small_guest()).cmdline(format!("count mib={mib}"));
    let vm = builder.memory_mib(memory_mib).vcpus(vcpus).irqchip(irqchip).console(said.console());
    let vm = vm.start().unwrap();
    goes_on(&said, "count", 8 * mib);
    vm
}

/// Waits for `by` more numbers. Returns the second of them, because a rewind may have cut the first.
fn goes_on(said: &Recorder, what: &str, by: u64) -> u64 {
    let from = said.text().rfind('\n').map_or(0, |at| at + 1);
    let numbers = || numbers(&said.text()[from..], what);
    wait_until("the guest goes on", || numbers().len() as u64 > by + 1);
    assert!(!said.text().contains("WRONG"), "{}", said.text());
    numbers()[1]
}

/// As [`goes_on`] of a VM that was just restored. Returns the second number of all its output, however far
/// the guest came before this call.
fn begins(said: &Recorder, what: &str, by: u64) -> u64 {
    goes_on(said, what, by);
    numbers(&said.text(), what)[1]
}

/// Returns where the last whole line of the output begins.
fn last_line(said: &Recorder) -> usize {
    let text = said.text();
    let end = text.rfind('\n').unwrap_or(0);
    text[..end].rfind('\n').map_or(0, |at| at + 1)
}

/// Waits until the numbers in the output after `from` go back. Returns the number after the smaller one,
/// because a rewind may have cut that line.
fn goes_back(said: &Recorder, what: &str, from: usize) -> u64 {
    let again = || {
        let numbers = numbers(&said.text()[from..], what);
        let back = numbers.windows(2).position(|two| two[1] < two[0])?;
        numbers.get(back + 2).copied()
    };
    wait_until("the guest counts again from the snapshot", || again().is_some());
    again().expect("the output stays")
}

fn restore(from: &Snapshot, rewindable: bool) -> (Recorder, Vm) {
    let said = Recorder::default();
    let mut options = RestoreOptions::default().console(said.console());
    options.rewindable = rewindable;
    (said, from.restore_with(options).unwrap())
}

#[test]
fn rewound_vm_equals_its_snapshot_each_time() {
    needs!(kvm);
    for (rewindable, irqchip) in [(true, IrqchipKind::Kernel), (false, IrqchipKind::Split)] {
        let place = Snapshots::new();
        let warm = place.snapshot(&counting(4, 64, 1, irqchip), "warm", SnapshotKind::Full);
        let (said, vm) = restore(&warm, rewindable);
        let first = begins(&said, "count", 40);
        for round in 0..50 {
            let before = last_line(&said);
            let rewound = vm.rewind().unwrap();
            assert!(rewound.pages >= 1024 || round > 0, "written pages are missing: {rewound:?}");
            let again = goes_back(&said, "count", before);
            assert!(again.abs_diff(first) <= 2, "{first}, and then {again}");
            goes_on(&said, "count", round % 5 * 10);
        }
        vm.pause().unwrap();
        assert_eq!(vm.rewind().unwrap().paused.as_nanos(), 0);
        assert_eq!(vm.state(), RunState::Paused);
        place.snapshot(&vm, "again", SnapshotKind::Full);
        assert!(place.memory("again") == place.memory("warm"), "byte for byte");
        assert_eq!(place.registers("again"), place.registers("warm"));
        vm.resume().unwrap();
        goes_on(&said, "count", 40);
    }
}

#[test]
fn rewind_resets_only_written_pages() {
    needs!(kvm);
    let place = Snapshots::new();
    let warm = place.snapshot(&counting(32, 128, 1, IrqchipKind::Kernel), "warm", SnapshotKind::Full);
    let (said, vm) = restore(&warm, true);
    goes_on(&said, "count", 2);
    // Each number is 64 of the guest's 8,192 pages.
    let pages = vm.rewind().unwrap().pages;
    assert!((64..4096).contains(&pages), "{pages}");
    goes_on(&said, "count", 300);
}

#[test]
fn rewind_resets_vcpus_and_memory_above_4_gib() {
    needs!(kvm);
    let place = Snapshots::new();
    let warm = place.snapshot(&counting(8, 4096, 2, IrqchipKind::Kernel), "warm", SnapshotKind::Full);
    let (said, vm) = restore(&warm, true);
    for _ in 0..3 {
        goes_on(&said, "count", 80);
        vm.rewind().unwrap();
    }
    vm.pause().unwrap();
    vm.rewind().unwrap();
    place.snapshot(&vm, "again", SnapshotKind::Full);
    assert_eq!(place.registers("again"), place.registers("warm"));
    vm.resume().unwrap();
    goes_on(&said, "count", 80);
}

/// Snapshots, diffs and forks include the pages that a rewind reset, and a rewind those that they read.
#[test]
fn snapshots_and_forks_work_between_rewinds() {
    needs!(kvm);
    let place = Snapshots::new();
    // With 16 MiB the guest does not write all pages again between two acts.
    let parent = counting(16, 64, 1, IrqchipKind::Kernel);
    place.snapshot(&parent, "base", SnapshotKind::Full);
    let (said, between) = restore(&Snapshot::open(&place.store, "base").unwrap(), false);
    goes_on(&said, "count", 20);
    let warm = place.snapshot(&between, "diff", SnapshotKind::Diff);
    let (said, vm) = restore(&warm, true);
    goes_on(&said, "count", 7);
    place.snapshot(&vm, "later", SnapshotKind::Full);
    goes_on(&said, "count", 7);
    let children = vm.fork([RestoreOptions::default()]).unwrap();
    goes_on(&said, "count", 7);
    vm.pause().unwrap();
    vm.rewind().unwrap();
    let rewound = place.snapshot(&vm, "rewound", SnapshotKind::Diff);
    volt_vmm::snapshot::merge(&rewound, &place.store, "merged", &Progress::default()).unwrap();
    volt_vmm::snapshot::merge(&warm, &place.store, "whole", &Progress::default()).unwrap();
    place.snapshot(&vm, "full", SnapshotKind::Full);
    for name in ["merged", "full"] {
        assert!(place.memory(name) == place.memory("whole"), "{name}");
    }
    vm.resume().unwrap();
    goes_on(&said, "count", 40);
    // A rewind takes a child back to its fork.
    let child = &children[0];
    child.pause().unwrap();
    child.rewind().unwrap();
    place.snapshot(child, "child", SnapshotKind::Full);
    child.resume().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    child.pause().unwrap();
    child.rewind().unwrap();
    place.snapshot(child, "child again", SnapshotKind::Full);
    assert!(place.memory("child") == place.memory("child again"));
}

fn with_disk(path: PathBuf, layer: Option<PathBuf>) -> Vm {
    let mut config = VmConfig::new(small_guest());
    config.boot.cmdline = "disk".to_owned();
    let disk = serde_json::json!({ "id": "root", "path": path, "layer": layer });
    let disk: DiskConfig = serde_json::from_value(disk).unwrap();
    config.devices = Devices { disks: vec![disk], ..Default::default() };
    let said = Recorder::default();
    let vm = Vm::builder().config(config).console(said.console()).start().unwrap();
    goes_on(&said, "sector", 70);
    vm
}

#[test]
fn rewind_undoes_writes_to_a_layer() {
    needs!(kvm);
    let place = Snapshots::new();
    let (path, layer) = (place.scratch.path("image"), place.scratch.path("layer"));
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    let warm = place.snapshot(&with_disk(path, Some(layer)), "warm", SnapshotKind::Full);
    let (said, vm) = restore(&warm, true);
    let first = begins(&said, "sector", 70);
    for _ in 0..5 {
        let before = last_line(&said);
        vm.rewind().unwrap();
        let again = goes_back(&said, "sector", before);
        assert!(again.abs_diff(first) <= 2, "{first}, and then {again}");
        goes_on(&said, "sector", 70);
    }
    vm.pause().unwrap();
    vm.rewind().unwrap();
    place.snapshot(&vm, "again", SnapshotKind::Full);
    let layer = |name| fs::read(place.scratch.path(name).join("disk-root.layer")).unwrap();
    // The headers differ by the layers' ids.
    assert!(layer("again")[4096..] == layer("warm")[4096..]);
}

#[test]
fn vm_that_cannot_be_rewound_goes_on() {
    needs!(kvm);
    let place = Snapshots::new();
    let path = place.scratch.path("image");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    let booted = with_disk(path, None);
    let error = booted.rewind().unwrap_err().to_string();
    assert_eq!(error, "snapshot: this VM was not restored from a snapshot, so there is none to rewind it to");
    // Writes to the image after the snapshot would keep the snapshot from being restored.
    booted.pause().unwrap();
    let warm = place.snapshot(&booted, "warm", SnapshotKind::Full);
    drop(booted);
    let (said, vm) = restore(&warm, true);
    let error = vm.rewind().unwrap_err().to_string();
    assert!(error.starts_with("disks: root: cannot rewind ") && error.contains("layer"), "{error}");
    goes_on(&said, "sector", 70);
    vm.stop();
    assert!(vm.rewind().is_err());
}

#[test]
fn failed_rewind_ends_the_vm() {
    needs!(kvm);
    let place = Snapshots::new();
    let warm = place.snapshot(&counting(4, 64, 1, IrqchipKind::Kernel), "warm", SnapshotKind::Full);
    // A lease does not stop a writer that opened the file before.
    let memory = place.scratch.path("warm").join("memory.snap");
    let memory = open_to_change(memory);
    let (said, vm) = restore(&warm, true);
    goes_on(&said, "count", 40);
    vm.pause().unwrap();
    memory.set_len(0).unwrap();
    let error = vm.rewind().unwrap_err().to_string();
    assert!(error.contains("guest memory to reset it"), "{error}");
    let end = vm.wait_ending().unwrap_err();
    let end = volt_vmm::report(&end);
    assert!(end.contains("could not rewind the VM") && end.contains("guest memory to reset it"), "{end}");
}

#[test]
fn rewind_works_over_rest_and_on_the_command_line() {
    needs!(kvm);
    let mut guest = Guest::boot("count mib=4");
    guest.wait_for("count 40");
    let rewind = |guest: &Guest| {
        let socket = guest.socket().to_str().unwrap().to_owned();
        Outcome::of(["rewind", "--api-socket", &socket])
    };
    rewind(&guest).refused(&["this VM was not restored from a snapshot"]);
    let mut clone = guest.snapshot().restore();
    let first = clone.next_number("count");
    while clone.next_number("count") < first + 40 {}
    let held = |guest: &Guest, what: &str| {
        let (status, answer) = guest.ask("GET", "/v1/vm/memory", "");
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str::<serde_json::Value>(&answer).unwrap()[what].as_u64().unwrap() >> 20
    };
    // The guest has its frozen memory and its writes since. A clone's base is the snapshot.
    assert!(held(&guest, "base_bytes") >= 4 && held(&guest, "private_bytes") >= 1);
    assert!(held(&clone, "base_bytes") >= 4 && held(&clone, "private_bytes") >= 4);
    let socket = clone.socket().to_str().unwrap().to_owned();
    let inspected = |more: &[&str]| {
        let outcome = Outcome::of([&["inspect", "--api-socket", &socket], more].concat());
        outcome.succeeded().stdout.clone()
    };
    let text = inspected(&[]);
    assert!(text.contains("state   running\n") && text.contains("private "), "{text}");
    let json: serde_json::Value = serde_json::from_str(&inspected(&["--json"])).unwrap();
    assert!(json["memory"]["private_bytes"].as_u64().unwrap() >= 4 << 20, "{json}");
    // Output from before the rewind comes first, and its last line may be cut.
    let before = clone.output().len();
    let said = |clone: &Guest, from: usize| numbers(&clone.output()[from..], "count");
    rewind(&clone).succeeded();
    wait_until("the guest is rewound", || said(&clone, before).iter().any(|number| *number <= first + 20));
    let (status, answer) = clone.ask("PUT", "/v1/vm/rewind", "");
    assert_eq!(status, 200, "{answer}");
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert!(answer["pages"].as_u64().unwrap() > 0 && answer["paused_us"].as_u64().unwrap() > 0, "{answer}");
    let before = clone.output().len();
    wait_until("the guest goes on", || said(&clone, before).iter().any(|number| *number >= first + 40));
    assert!(!clone.output().contains("WRONG"), "{}", clone.output());
}

#[test]
fn rewind_syncs_no_file() {
    needs!(kvm);
    let scratch = Scratch::new();
    let (base, layer, mine) = (scratch.fresh("base"), scratch.fresh("layer"), scratch.fresh("mine"));
    fs::write(&base, vec![7; 1 << 20]).unwrap();
    let words = format!("path={},layer={},id=root", base.display(), layer.display());
    let mut parent = Boot::small("disk takes-flush=1").device(["--disk".to_owned(), words]).start();
    while parent.next_number("sector") < 70 {}
    let warm = parent.snapshot();
    drop(parent);
    // A flush and the end of the VM sync a layer with a name.
    let own = format!("id=root,layer={}", mine.display());
    let mut guest = warm.restore_on(&KvmShim::new().killed_by_syncs(), &["--disk", &own]);
    for _ in 0..3 {
        // A rewind may cut a line, and the next line follows on it.
        for _ in 0..20 {
            guest.wait_for("\nsector ");
        }
        let (status, answer) = guest.ask("PUT", "/v1/vm/rewind", "");
        assert_eq!(status, 200, "{answer}");
    }
    // Output from before the last rewind has settled, and the guest must write again.
    guest.pause();
    let before = guest.settled_output().len();
    guest.resume();
    wait_until("the guest writes after the rewind", || guest.output()[before..].contains("\nsector "));
    // The end syncs, which shows that the filter works.
    guest.signal(Signal::TERM);
    assert_eq!(guest.wait_exit().status, -Signal::SYS.as_raw(), "the filter lets syncs pass");
    assert!(!guest.output().contains("WRONG"), "{}", guest.output());
}
