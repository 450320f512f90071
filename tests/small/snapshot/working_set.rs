//! Later restores read a recorded working set ahead in the background. A wrong working set is refused before
//! the guest runs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;
use volt_tests::damage::overwrite;
use volt_tests::{
    Exposition, Guest, Outcome, Recorder, Scratch, Snapshot, limited, needs, numbers, small_guest,
    wait_until, without_generation,
};
use volt_vmm::internal::timing;
use volt_vmm::{
    Compression, MemoryUsage, Packing, Pool, RecordUntil, RestoreOptions, SnapshotOptions, Store, Vm, VmShape,
};

use crate::snapshot::recording::{MIB, answer, goes_on, of_every_kind, record_all};
use crate::snapshot::restoring::goes_on_from;

/// Waits until the working set is read ahead. Returns the VM's memory usage.
fn read_ahead(guest: &Guest) -> Value {
    let mut held = Value::Null;
    wait_until("the working set is read ahead", || {
        held = answer(guest, "GET", "/v1/vm/memory");
        held["prefetch"]["is_over"] == true
    });
    assert_eq!(held["prefetch"]["read"], held["prefetch"]["pages"], "{held}");
    held
}

fn file(snapshot: &Snapshot) -> PathBuf {
    snapshot.directory().join("working-set")
}

/// Returns the resident memory of a paused guest's process in KiB, after the prefetch.
fn resident(guest: &Guest) -> u64 {
    read_ahead(guest);
    guest.resident_kib()
}

#[test]
fn working_set_is_read_ahead_over_any_memory() {
    needs!(kvm, page_faults);
    for (snapshot, before) in of_every_kind() {
        let pages = record_all(&snapshot)["pages"].as_u64().unwrap();
        let mut guest = snapshot.restore_as(&["--paused"]);
        let held = read_ahead(&guest);
        let of_diff = snapshot.diff_path().exists() && held["chunks"].is_object();
        // Over packed memory, pages of the diff are present and not fetched from the base.
        let named = held["prefetch"]["pages"].as_u64().unwrap();
        assert!(if of_diff { named < pages * 3 / 4 } else { named == pages }, "{held} for {pages}");
        guest.resume();
        goes_on_from(&before, &mut guest);
        guest.resume();
        goes_on(&mut guest);
        let chunks = &answer(&guest, "GET", "/v1/vm/memory")["chunks"];
        if chunks.is_object() {
            // The restore itself touches up to two chunks before the prefetch.
            let [touched, ahead, in_vain] =
                ["on_touch", "ahead", "in_vain"].map(|what| chunks[what].as_u64().unwrap());
            assert!(touched <= 2 && ahead > 0 && in_vain <= 1, "{chunks}");
        }
        let metrics = Exposition::parse(&guest.ask("GET", "/metrics", "").1);
        assert_eq!(Some(metrics.get("volt_vmm_prefetch_pages")), held["prefetch"]["read"].as_f64());
        if chunks.is_object() {
            let [ahead, hits] = ["prefetched_chunks", "prefetch_hits"]
                .map(|family| metrics.get(&format!("volt_vmm_{family}")));
            assert_eq!(Some(ahead), chunks["ahead"].as_f64());
            assert!(hits >= ahead - 1.0 && hits <= ahead, "{hits} of {ahead}");
        }
        let mut without = snapshot.restore_as(&["--no-prefetch"]);
        goes_on(&mut without);
        let held = answer(&without, "GET", "/v1/vm/memory");
        assert_eq!(held["prefetch"], Value::Null);
        assert!(
            held["chunks"].is_null()
                || held["chunks"]["ahead"] == 0 && held["chunks"]["on_touch"].as_u64() > Some(2)
        );
    }
}

#[test]
fn working_set_of_raw_memory_is_mapped() {
    needs!(kvm, page_faults);
    let (snapshot, _) = of_every_kind().swap_remove(0);
    let mib = record_all(&snapshot)["bytes"].as_u64().unwrap() >> 20;
    let with = resident(&snapshot.restore_as(&["--paused"]));
    let without = snapshot.restore_as(&["--paused", "--no-prefetch"]);
    assert_eq!(answer(&without, "GET", "/v1/vm/memory")["prefetch"], Value::Null);
    assert!(with > without.resident_kib() + (mib << 9), "{with} KiB and {}", without.resident_kib());
}

#[test]
fn rest_load_can_disable_prefetch() {
    needs!(kvm, page_faults);
    let (snapshot, _) = of_every_kind().swap_remove(0);
    record_all(&snapshot);
    for (more, reads) in [("", true), (r#","prefetch":false"#, false), (r#","prefetch":true"#, true)] {
        let guest = Guest::waiting();
        let load = format!(r#"{{"snapshot_path":"{}"{more}}}"#, snapshot.directory().display());
        assert_eq!(guest.ask("PUT", "/snapshot/load", &load), (204, String::new()));
        assert_eq!(answer(&guest, "GET", "/v1/vm/memory")["prefetch"].is_object(), reads, "{more}");
    }
}

#[test]
fn pager_reads_ahead_for_all_vms() {
    needs!(kvm, page_faults);
    let scratch = Scratch::new();
    let snapshot = of_every_kind().swap_remove(2).0;
    let bytes = record_all(&snapshot)["bytes"].as_u64().unwrap();
    let directory = scratch.path("pagers");
    let restore = |options: &[&str]| {
        snapshot.restore_as(
            &[&["--pager", "shared", "--pager-dir", directory.to_str().unwrap()], options].concat(),
        )
    };
    let base = |guest: &Guest| answer(guest, "GET", "/v1/vm/memory")["base_bytes"].as_u64().unwrap();
    let bare = restore(&["--paused", "--no-prefetch"]);
    let least = base(&bare);
    assert!(least < bytes / 4, "{least} of {bytes}");
    let mut guests = [restore(&["--paused"]), restore(&["--paused"])];
    let held = read_ahead(&guests[0]);
    assert!(base(&bare) >= bytes && held["chunks"]["ahead"] == held["chunks"]["in_vain"], "{held}");
    for guest in &mut guests {
        guest.resume();
        goes_on(guest);
    }
    // The guests touched only named pages, apart from those that a restore touches.
    let chunks = &read_ahead(&guests[1])["chunks"];
    let [touched, in_vain] = ["on_touch", "in_vain"].map(|what| chunks[what].as_u64().unwrap());
    assert!(touched <= 6 && in_vain <= 1, "{chunks}");
    assert_eq!(answer(&bare, "GET", "/v1/vm/memory")["prefetch"], Value::Null);
    assert!(base(&bare) < bytes + (1 << 20), "{} for {bytes}", base(&bare));
}

#[test]
fn wrong_working_set_is_refused_by_name() {
    needs!(kvm, page_faults);
    let mut all = of_every_kind();
    let ((other, _), (snapshot, _)) = (all.swap_remove(2), all.swap_remove(0));
    record_all(&snapshot);
    record_all(&other);
    let path = file(&snapshot);
    let right = fs::read(&path).unwrap();
    let mut flipped = right.clone();
    flipped[45] ^= 1;
    for (wrong, problem) in [
        (fs::read(file(&other)).unwrap(), "is the working set of another snapshot"),
        (flipped, "is damaged"),
        (right[..right.len() - 8].to_vec(), "is damaged"),
        (right[..20].to_vec(), "is not a working set"),
        (Vec::new(), "is not a working set"),
    ] {
        overwrite(&path, &wrong);
        let words = [path.to_str().unwrap(), problem, "delete the file"];
        snapshot.try_restore().refused(&words);
        snapshot.try_restore_as(&["--record", "console"]).refused(&words);
        snapshot.try_restore_as(&["--unpack"]).refused(&words);
        snapshot.verify().refused(&words);
        let to = snapshot.directory().with_extension("converted");
        snapshot.try_convert(&to, &["--compress", "lz4"]).refused(&words);
        assert!(!to.exists());
        goes_on(&mut snapshot.restore_as(&["--no-prefetch"]));
    }
    fs::remove_file(&path).unwrap();
    snapshot.verify().succeeded();
    fs::create_dir(&path).unwrap();
    snapshot.try_restore().refused(&[path.to_str().unwrap()]);
}

#[test]
fn conversion_and_merge_keep_the_working_set() {
    needs!(kvm, page_faults);
    let all = of_every_kind();
    let (raw, diff) = (&all[0].0, &all[1].0);
    record_all(raw);
    let bytes = |snapshot: &Snapshot| fs::read(file(snapshot)).unwrap();
    let packed = raw.converted(&["--compress", "lz4"]);
    assert_eq!((bytes(&packed), bytes(&packed.converted(&["--compress", "none"]))), (bytes(raw), bytes(raw)));
    assert_eq!(fs::metadata(file(&packed)).unwrap().permissions().mode() & 0o777, 0o400);
    // A diff does not take over its base's working set, and a merge takes over the diff's.
    assert!(!file(diff).exists() && !file(&diff.merged()).exists());
    record_all(diff);
    assert_eq!(bytes(&diff.merged()), bytes(diff));
    for snapshot in [&packed, &diff.merged()] {
        let mut guest = snapshot.restore();
        read_ahead(&guest);
        goes_on(&mut guest);
        assert!(!file(&guest.snapshot()).exists(), "a new snapshot has a working set");
    }
}

// ---- In the library ----

/// A directory with a snapshot `warm`, taken in this process.
struct WarmStore(Scratch);

impl WarmStore {
    fn new(options: &SnapshotOptions) -> Self {
        let (warm, recorder) = (Self(Scratch::new()), Recorder::default());
        let cmdline = format!("count mib={MIB}");
        let builder = Vm::builder().kernel(small_guest()).cmdline(cmdline).memory_mib(64);
        let vm = builder.console(recorder.console()).start().unwrap();
        counts_to(&recorder, MIB * 4 + 4);
        vm.snapshot_with(&warm.store(), "warm", options).unwrap();
        warm
    }

    fn packed() -> Self {
        let packing = Some(Packing::new(Compression::Lz4));
        Self::new(&SnapshotOptions::default().packing(packing))
    }

    fn store(&self) -> Store {
        Store::open(&format!("file://{}", self.0.directory().display())).unwrap()
    }

    fn open(&self) -> volt_vmm::Snapshot {
        volt_vmm::Snapshot::open(&self.store(), "warm").unwrap()
    }
}

fn counts_to(recorder: &Recorder, count: u64) {
    let last = || numbers(&recorder.text(), "count").last().copied().unwrap_or(0);
    wait_until("the guest counts", || last() >= count);
    assert!(!recorder.text().contains("WRONG"), "{}", recorder.text());
}

/// Waits until the guest has gone twice through all of its memory.
fn runs_on(recorder: &Recorder) {
    wait_until("the guest counts", || !numbers(&recorder.text(), "count").is_empty());
    counts_to(recorder, numbers(&recorder.text(), "count")[0] + 2 * MIB * 4);
}

fn options(recorder: &Recorder) -> RestoreOptions {
    RestoreOptions::default().console(recorder.console())
}

fn recorded(snapshot: &volt_vmm::Snapshot) -> u64 {
    let recorder = Recorder::default();
    let vm = snapshot.restore_with(options(&recorder).record(RecordUntil::Api)).unwrap();
    runs_on(&recorder);
    vm.end_recording().unwrap().pages
}

fn all_ahead(vm: &Vm) -> MemoryUsage {
    let held = || vm.memory_usage().unwrap();
    wait_until("the working set is read ahead", || held().prefetch.is_some_and(|prefetch| prefetch.is_over));
    held()
}

#[test]
fn chunks_are_read_ahead_once_for_all_vms_of_a_snapshot() {
    needs!(kvm, page_faults);
    let warm = WarmStore::packed();
    let snapshot = warm.open();
    assert!(recorded(&snapshot) > MIB * 256);
    assert_eq!(snapshot.chunks_fetched(), 0, "the recorded VM shares chunks with others");
    let (one, other) = (Recorder::default(), Recorder::default());
    let vm = snapshot.restore_with(options(&one).paused()).unwrap();
    let held = all_ahead(&vm).chunks.unwrap();
    assert!(held.ahead > MIB * 16 && held.in_vain > MIB * 16 && held.on_touch <= 2, "{held:?}");
    let second = snapshot.restore_with(options(&other)).unwrap();
    runs_on(&other);
    let of_second = all_ahead(&second).chunks.unwrap();
    assert!((of_second.ahead, of_second.in_vain <= 1) == (held.ahead, true), "{of_second:?}");
    assert_eq!(all_ahead(&vm).chunks.unwrap().in_vain, held.in_vain, "the paused VM touched a chunk");
    vm.resume().unwrap();
    runs_on(&one);
    assert!(all_ahead(&vm).chunks.unwrap().in_vain <= 1);
    assert_eq!(snapshot.chunks_fetched(), of_second.ahead + all_ahead(&vm).chunks.unwrap().on_touch);
}

#[test]
fn ended_vms_do_not_stop_the_prefetch_of_others() {
    needs!(kvm, page_faults);
    for warm in [WarmStore::packed(), WarmStore::new(&SnapshotOptions::default())] {
        let snapshot = warm.open();
        recorded(&snapshot);
        for _ in 0..20 {
            drop(snapshot.restore().unwrap());
        }
        let recorder = Recorder::default();
        let vm = snapshot.restore_with(options(&recorder)).unwrap();
        drop(snapshot);
        runs_on(&recorder);
        all_ahead(&vm);
    }
}

#[test]
fn damage_found_by_prefetch_ends_the_vm_that_touches_it() {
    needs!(kvm, page_faults);
    let warm = WarmStore::packed();
    recorded(&warm.open());
    let path = warm.0.path("warm/memory.pack");
    let bytes = fs::read(&path).unwrap();
    let end = bytes.len() - 8 * 4096; // keeps the index sound
    overwrite(&path, [vec![0xa5; end], bytes[end..].to_vec()].concat());
    let vm = warm.open().restore_with(RestoreOptions::default().paused()).unwrap();
    wait_until("the prefetch gives up", || {
        vm.memory_usage().unwrap().prefetch.is_some_and(|prefetch| prefetch.is_over)
    });
    vm.resume().unwrap();
    let why = limited("the VM ends", || vm.wait()).unwrap_err().to_string();
    assert!(why.contains("cannot be read") && why.contains("is damaged in chunk"), "{why}");
}

#[test]
fn pooled_vms_are_recorded_and_prefetched() {
    needs!(kvm, page_faults);
    let warm = WarmStore::packed();
    let snapshot = warm.open();
    let pool = Arc::new(Pool::new(VmShape::of(snapshot.config()), 1).unwrap());
    let restore = |record| {
        pool.wait_ready().unwrap();
        let recorder = Recorder::default();
        let options = options(&recorder).pool(Arc::clone(&pool)).record(record);
        let (vm, steps) = timing::record(|| snapshot.restore_with(options));
        assert!(steps.iter().any(|(step, _)| *step == "shell from the pool"));
        let vm = vm.unwrap();
        runs_on(&recorder);
        vm
    };
    let recorded = restore(Some(RecordUntil::Console)).wait_recorded().unwrap().unwrap();
    assert!(recorded.pages > 2);
    assert_eq!(all_ahead(&restore(None)).prefetch.unwrap().pages, recorded.pages);
}

/// Snapshots, forks and rewinds of a recorded VM equal those of others and do not count as touches of its
/// guest.
#[test]
fn recorded_vm_is_snapshotted_forked_and_rewound_like_others() {
    needs!(kvm, page_faults);
    let warm = WarmStore::packed();
    let to = warm.store();
    let diff = SnapshotOptions::default().diff();
    let said = Recorder::default();
    let vm = warm.open().restore_with(options(&said)).unwrap();
    wait_until("the guest counts", || !numbers(&said.text(), "count").is_empty());
    vm.snapshot_with(&to, "diff", &diff).unwrap();
    drop(vm);
    let paused = |record| RestoreOptions::default().paused().record(record);
    for name in ["warm", "diff"] {
        let open = || volt_vmm::Snapshot::open(&to, name).unwrap();
        let path = |what: &str| warm.0.path(&format!("{name}-{what}")).display().to_string();
        for (what, record) in [("recorded", Some(RecordUntil::Api)), ("eager", None)] {
            let vm = open().restore_with(paused(record)).unwrap();
            vm.snapshot_with(&to, &format!("{name}-{what}-diff"), &diff).unwrap();
            vm.snapshot(&to, &format!("{name}-{what}")).unwrap();
            Outcome::of([
                "snapshot",
                "merge",
                &path(&format!("{what}-diff")),
                &path(&format!("{what}-merged")),
            ])
            .succeeded();
            if record.is_some() {
                assert!(vm.end_recording().unwrap().pages < 64);
            }
        }
        let memory =
            |what: &str| without_generation(fs::read(PathBuf::from(path(what)).join("memory.snap")).unwrap());
        for what in ["recorded-merged", "eager", "eager-merged"] {
            assert!(memory("recorded") == memory(what), "{name}: {what}");
        }
        // The VM and its child go on after a fork and a rewind.
        let recorder = Recorder::default();
        let vm = open().restore_with(options(&recorder).record(RecordUntil::Api)).unwrap();
        runs_on(&recorder);
        let child = Recorder::default();
        let children = vm.fork([options(&child)]).unwrap();
        vm.rewind().unwrap();
        let before = recorder.text().len();
        let since = || numbers(&recorder.text()[before..], "count").len();
        wait_until("the guest goes on", || since() > MIB as usize * 8);
        assert!(!recorder.text().contains("WRONG"), "{}", recorder.text());
        runs_on(&child);
        drop(children);
        assert!(vm.end_recording().unwrap().pages > MIB * 256);
    }
}
