//! A layer keeps its guest's writes however the VM ends. The guest neither resets its disk nor flushes.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use volt_tests::{
    Boot, Child, Guest, HeldSyncs, Input, KvmShim, Recorder, Scratch, Terminal, needs, numbers, wait_until,
};
use volt_vmm::config::Overrides;
use volt_vmm::config::devices::DiskConfig;
use volt_vmm::config::overrides::DiskOverride;
use volt_vmm::{RestoreOptions, Vm, VmConfig};

/// Sectors that the guest writes.
const SECTORS: u64 = 24;
/// The options that put each sector in its own cluster.
const APART: &str = "takes-flush=1 stride=128";

/// How a VM ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndedBy {
    Poweroff,
    Reboot,
    TripleFault,
    Signal(Signal),
    Stop,
    /// Ctrl-A X on its terminal.
    Escape,
}

const ENDINGS: [EndedBy; 7] = [
    EndedBy::Poweroff,
    EndedBy::Reboot,
    EndedBy::TripleFault,
    EndedBy::Signal(Signal::TERM),
    EndedBy::Signal(Signal::KILL),
    EndedBy::Stop,
    EndedBy::Escape,
];

fn boot<'a>(words: &str, disk: &str) -> Boot<'a> {
    Boot::small(&format!("disk {words}")).device(["--disk", disk])
}

fn guest(words: &str, disk: &str) -> Guest {
    boot(words, disk).start()
}

#[test]
fn layer_keeps_unflushed_writes_however_the_vm_ends() {
    needs!(kvm);
    for cache in ["writeback", "unsafe"] {
        for engine in ["sync", "io_uring"] {
            ENDINGS.iter().for_each(|ending| write_end_and_look(cache, engine, *ending));
        }
    }
}

fn write_end_and_look(cache: &str, engine: &str, ending: EndedBy) {
    let scratch = Scratch::new();
    let (base, layer) = (scratch.fresh("base"), scratch.fresh("layer"));
    std::fs::write(&base, vec![7; 4 << 20]).unwrap();
    let disk = format!("path={},layer={},cache={cache},engine={engine}", base.display(), layer.display());
    let number = match ending {
        EndedBy::Poweroff => 1,
        EndedBy::Reboot => 2,
        EndedBy::TripleFault => 3,
        EndedBy::Signal(_) | EndedBy::Stop | EndedBy::Escape => 0,
    };
    let terminal = Terminal::open();
    let mut boot = boot(&format!("{APART} until={SECTORS} ending={number}"), &disk);
    if ending == EndedBy::Escape {
        boot = boot.input(Input::Terminal(&terminal));
    }
    let mut guest = boot.start();
    guest.wait_for("done");
    match ending {
        EndedBy::Signal(signal) => guest.signal(signal),
        EndedBy::Stop => assert_eq!(guest.ask("PUT", "/v1/stop", "").0, 204),
        EndedBy::Escape => drop(guest.type_in("\x01x")),
        EndedBy::Poweroff | EndedBy::Reboot | EndedBy::TripleFault => {}
    }
    guest.wait_exit();
    // A killed process has no time to sync, so a crash of the host would lose its writes.
    let kept = if ending == EndedBy::Signal(Signal::KILL) { 0 } else { SECTORS };
    assert_eq!(synced_clusters(&layer), kept, "{cache} {engine} {ending:?}");
    let mut again = self::guest(&format!("{APART} check={SECTORS}"), &disk);
    assert_eq!(again.next_number("kept"), SECTORS, "{cache} {engine} {ending:?}");
    assert_eq!(std::fs::read(&base).unwrap(), vec![7; 4 << 20]);
}

/// Longer than a signal gives a guest to end.
const BEYOND_THE_LIMIT: Duration = Duration::from_millis(4500);

#[test]
fn signal_gives_a_layer_the_time_to_settle() {
    needs!(kvm);
    let scratch = Scratch::new();
    let (base, layer) = (scratch.fresh("base"), scratch.fresh("layer"));
    std::fs::write(&base, vec![7; 4 << 20]).unwrap();
    let disk = format!("path={},layer={}", base.display(), layer.display());
    let syncs = HeldSyncs::new();
    let mut guest = boot(&format!("{APART} until={SECTORS}"), &disk).syncs(&syncs).start();
    guest.wait_for("done");
    syncs.hold();
    guest.signal(Signal::TERM);
    syncs.wait_held();
    // The sync before the write of the map takes this long.
    std::thread::sleep(BEYOND_THE_LIMIT);
    assert_eq!(synced_clusters(&layer), 0, "the map was written before its data was synced");
    syncs.release();
    assert_eq!(guest.wait_exit().status, 143);
    assert_eq!(synced_clusters(&layer), SECTORS, "the signal ended the process while its layer settled");
}

/// A vCPU that resets a disk waits for the disk's requests.
#[test]
fn signal_gives_a_guest_that_resets_its_disk_the_time_of_a_flush() {
    needs!(kvm);
    let scratch = Scratch::new();
    let (base, layer) = (scratch.fresh("base"), scratch.fresh("layer"));
    std::fs::write(&base, vec![7; 4 << 20]).unwrap();
    let disk = format!("path={},layer={}", base.display(), layer.display());
    let syncs = HeldSyncs::new();
    let mut guest = boot(&format!("{APART} until={SECTORS} ending=4"), &disk).syncs(&syncs).start();
    guest.wait_for("done");
    syncs.hold();
    guest.type_in("f");
    syncs.wait_held();
    guest.type_in("r");
    guest.wait_for("resets");
    // A snapshot waits for that vCPU, too, and keeps other threads from pausing the VM meanwhile.
    std::thread::scope(|scope| {
        let snapshot = scope.spawn(|| guest.try_snapshot(&scratch.path("snapshot")));
        std::thread::sleep(Duration::from_millis(500));
        guest.signal(Signal::TERM);
        std::thread::sleep(BEYOND_THE_LIMIT);
        assert_eq!(synced_clusters(&layer), 0, "the map was written before its data was synced");
        syncs.release();
        assert_ne!(snapshot.join().unwrap().status, 0);
    });
    assert_eq!(guest.wait_exit().status, 143);
    assert_eq!(synced_clusters(&layer), SECTORS, "the signal ended the process during a flush");
}

#[test]
fn layer_of_a_child_keeps_unflushed_writes_however_the_child_ends() {
    needs!(kvm);
    let scratch = Scratch::new();
    let (base, layer) = (scratch.fresh("base"), scratch.fresh("layer"));
    std::fs::write(&base, vec![7; 4 << 20]).unwrap();
    let disk = format!("path={},layer={},id=root,cache=unsafe", base.display(), layer.display());
    let mut guest = boot(APART, &disk).scratch(&scratch).start();
    guest.next_number("sector");
    guest.pause();
    let last = numbers(&guest.settled_output(), "sector").pop().unwrap();
    for signal in [None, Some(Signal::TERM), Some(Signal::KILL)] {
        let own = scratch.fresh("own");
        let different = json!({"overrides": {"disks": [{"id": "root", "layer": own}]}});
        let name = own.file_name().unwrap().to_str().unwrap();
        let mut children = Child::fork(guest.socket(), scratch.directory(), &[(name, different)], false);
        let child = children.pop().unwrap();
        // By then the child has written each of its 64 clusters.
        child.reaches("sector", last + 65);
        match signal {
            None => child.stop(),
            Some(signal) => {
                let pid = rustix::process::Pid::from_raw(child.pid().cast_signed()).unwrap();
                rustix::process::kill_process(pid, signal).unwrap();
                child.wait_gone();
            }
        }
        // The child's layer began as a copy of the parent's. After a kill its synced map has only the
        // parent's clusters.
        let kept = synced_clusters(&own);
        assert_eq!(kept == 64, signal != Some(Signal::KILL), "{signal:?}: {kept} clusters");
    }
}

/// Counts the clusters in a layer's synced map, which follows the header of 4 KiB.
fn synced_clusters(layer: &Path) -> u64 {
    std::fs::read(layer).unwrap()[4096..8192].iter().map(|byte| u64::from(byte.count_ones())).sum()
}

#[test]
fn layer_without_a_name_is_never_synced() {
    needs!(kvm);
    for engine in ["sync", "io_uring"] {
        let scratch = Scratch::new();
        let (base, layer) = (scratch.fresh("base"), scratch.fresh("layer"));
        std::fs::write(&base, vec![7; 4 << 20]).unwrap();
        let disk = format!("path={},layer={},id=root,engine={engine}", base.display(), layer.display());
        let mut parent = Boot::small("records").device(["--disk".to_owned(), disk]).start();
        parent.next_number("synced");
        let warm = parent.snapshot();
        drop(parent);
        // The guest flushes all the time.
        let mut guest = warm.restore_on(&KvmShim::new().killed_by_syncs(), &[]);
        let first = guest.next_number("synced");
        while guest.next_number("synced") < first + 40 {}
        guest.signal(Signal::TERM);
        assert_eq!(guest.wait_exit().status, 143, "{engine}: {}", guest.stderr());
    }
}

#[test]
fn layer_of_a_dropped_vm_has_all_writes_synced() {
    needs!(kvm);
    let scratch = Scratch::new();
    let (base, layer) = (scratch.fresh("base"), scratch.fresh("layer"));
    std::fs::write(&base, vec![7; 4 << 20]).unwrap();
    let disk = format!(r#"{{"id":"root","path":{base:?},"layer":{layer:?},"cache":"unsafe"}}"#);
    let mut config = VmConfig::new(volt_tests::small_guest());
    config.boot.cmdline = format!("disk {APART} until={SECTORS}");
    config.memory_mib = 64;
    config.devices.disks.push(serde_json::from_str(&disk).unwrap());
    let recorder = Recorder::default();
    let vm = Vm::builder().config(config).console(recorder.console()).start().unwrap();
    recorder.wait_for("done\n");
    drop(vm);
    assert_eq!(synced_clusters(&layer), SECTORS);
}

#[test]
fn failed_fork_of_the_library_leaves_no_layer() {
    needs!(kvm);
    let scratch = Scratch::new();
    let (base, layer) = (scratch.fresh("base"), scratch.fresh("layer"));
    std::fs::write(&base, vec![7; 4 << 20]).unwrap();
    let recorder = Recorder::default();
    let builder = Vm::builder().kernel(volt_tests::small_guest()).cmdline(format!("disk {APART}"));
    let builder = builder.memory_mib(64).disk(DiskConfig::new("root", &base).layer(&layer));
    let parent = builder.console(recorder.console()).start().unwrap();
    wait_until("the guest writes", || !numbers(&recorder.text(), "sector").is_empty());
    let child = |name: &str| {
        let layer = DiskOverride::new("root").layer(scratch.path(name));
        RestoreOptions::default().overrides(Overrides::default().disk(layer))
    };
    let before = scratch.list();
    let error = parent.fork([child("one"), child("no/such")]).unwrap_err();
    assert!(error.to_string().contains("no/such"), "{error}");
    assert_eq!(scratch.list(), before, "a layer of the first child is left");
    let children = parent.fork([child("one"), child("two")]).unwrap();
    drop(children);
    assert!(["one", "two"].iter().all(|name| scratch.path(name).exists()), "layers of children are kept");
    // A restore within an act that fails leaves none either.
    let here = parent.snapshot_in_memory().unwrap();
    drop(here.restore_provisionally(child("three").paused()).unwrap());
    assert!(!scratch.path("three").exists());
    let kept = here.restore_provisionally(child("three")).unwrap().keep();
    drop(kept);
    assert!(scratch.path("three").exists());
}
