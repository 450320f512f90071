//! Snapshots with a limit on the pause stay within it or fail.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use volt_tests::{Boot, Recorder, Scratch, needs, numbers, small_guest, wait_until};
use volt_vmm::{
    CaptureStats, Error, RestoreOptions, Result, RunState, Snapshot, SnapshotKind, SnapshotOptions, Store,
    Vm, VmConfig,
};

/// Shorter than any pause.
const IMPOSSIBLE: Duration = Duration::from_nanos(1);
/// Longer than any pause.
const PLENTY: Duration = Duration::from_secs(60);

struct Counting {
    scratch: Scratch,
    recorder: Recorder,
    vm: Vm,
}

impl Counting {
    fn begin() -> Self {
        let recorder = Recorder::default();
        let builder = Vm::builder().kernel(small_guest()).cmdline("count mib=8").memory_mib(64);
        let vm = builder.console(recorder.console()).start().unwrap();
        recorder.wait_for("count 10\n");
        Self { scratch: Scratch::new(), recorder, vm }
    }

    fn store(&self) -> Store {
        Store::open(&format!("file://{}", self.scratch.directory().display())).unwrap()
    }

    fn take(&self, name: &str, kind: SnapshotKind, longest: Duration) -> Result<CaptureStats> {
        let options = SnapshotOptions::default().kind(kind).max_pause(longest);
        self.vm.snapshot_with(&self.store(), name, &options)
    }
}

/// Waits until the guest has gone twice through its 8 MiB.
fn goes_on(recorder: &Recorder) {
    let last = || numbers(&recorder.text(), "count").last().copied().unwrap_or(0);
    let first = last();
    wait_until("the guest counts on", || last() > first + 2 * 8 * 4);
    assert!(!recorder.text().contains("WRONG"), "{}", recorder.text());
}

#[test]
fn too_long_pause_leaves_no_snapshot_and_the_guest_runs_on() {
    needs!(kvm);
    let counting = Counting::begin();
    for kind in [SnapshotKind::Full, SnapshotKind::Full, SnapshotKind::Diff] {
        if kind == SnapshotKind::Diff {
            counting.take("base", SnapshotKind::Full, PLENTY).unwrap();
        }
        let before = counting.scratch.list();
        let error = counting.take("warm", kind, IMPOSSIBLE).unwrap_err();
        assert!(matches!(error, Error::PauseTooLong { limit: IMPOSSIBLE, .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.starts_with("cannot take a snapshot within a pause of 1ns: "), "{text}");
        assert!(text.ends_with("; allow a longer pause, or wait until the guest does less"), "{text}");
        assert_eq!(counting.scratch.list(), before);
        assert_eq!(counting.vm.state(), RunState::Running);
        goes_on(&counting.recorder);
    }
}

/// Reading the dirty log clears it, and the failed snapshot has read it.
#[test]
fn snapshot_after_a_failed_one_is_complete() {
    needs!(kvm);
    let counting = Counting::begin();
    counting.take("full", SnapshotKind::Full, PLENTY).unwrap();
    counting.take("none", SnapshotKind::Diff, IMPOSSIBLE).unwrap_err();
    counting.take("diff", SnapshotKind::Diff, PLENTY).unwrap();
    counting.take("none", SnapshotKind::Full, IMPOSSIBLE).unwrap_err();
    counting.take("second", SnapshotKind::Full, PLENTY).unwrap();
    for name in ["full", "diff", "second"] {
        let recorder = Recorder::default();
        let options = RestoreOptions::default().console(recorder.console());
        let _vm = Snapshot::open(&counting.store(), name).unwrap().restore_with(options).unwrap();
        goes_on(&recorder);
    }
}

#[test]
fn paused_vm_has_no_pause_limit() {
    needs!(kvm);
    let counting = Counting::begin();
    counting.vm.pause().unwrap();
    let course = counting.take("warm", SnapshotKind::Full, IMPOSSIBLE).unwrap();
    assert_eq!((course.paused, course.pages_in_memory), (Duration::ZERO, course.pages_in_pause));
}

/// The first pass takes most pages. Copies in memory are limited to the pages written since.
#[test]
fn copies_in_memory_are_bounded_by_the_written_pages() {
    needs!(kvm);
    let counting = Counting::begin();
    counting.take("first", SnapshotKind::Full, PLENTY).unwrap();
    counting.vm.pause().unwrap();
    counting.vm.resume().unwrap();
    goes_on(&counting.recorder);
    let course = counting.take("second", SnapshotKind::Full, PLENTY).unwrap();
    assert!(course.pages_in_memory >= course.pages_in_pause, "{course:?}");
    // The 8 MiB under test and a few pages of the guest's own.
    assert!(course.pages_in_memory <= course.pages && course.pages <= 2048 + 256, "{course:?}");
    assert!(course.paused <= PLENTY);
}

#[test]
fn pause_limit_is_given_on_the_command_line_and_over_rest() {
    needs!(kvm);
    let mut guest = Boot::small("count mib=4").start();
    guest.wait_for("count");
    guest.snapshot_as(&["--max-pause", "60000"]).restore().next_number("count");
    let place = guest.scratch().path("none");
    let outcome = guest.try_snapshot_as(&place, &["--max-pause", "0"]);
    assert!(
        outcome.status == 2 && outcome.stderr.contains("'--max-pause <MILLISECONDS>': 0 is not in 1.."),
        "{outcome:?}"
    );
    let body = format!(r#"{{"snapshot_path":"{}","max_pause_ms":0}}"#, place.display());
    let (status, answer) = guest.ask("PUT", "/snapshot/create", &body);
    assert!(
        status == 400 && answer.contains("max_pause_ms: 0 allows no pause, but a snapshot needs one"),
        "{status} {answer}"
    );
    assert!(!place.exists());
}

/// The guest writes to its disk without end, so the snapshot has to stop the disk. The pause includes this
/// time.
#[test]
fn pause_includes_the_time_to_stop_disks() {
    needs!(kvm);
    let scratch = Scratch::new();
    let image = scratch.fresh("image");
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&image).unwrap();
    file.set_len(4 << 20).unwrap();
    let store = Store::open(&format!("file://{}", scratch.directory().display())).unwrap();
    let mut config = VmConfig::new(small_guest());
    "disk-churn mib=4".clone_into(&mut config.boot.cmdline);
    config.memory_mib = 64;
    let disk = serde_json::json!({"id": "root", "path": image});
    config.devices.disks.push(serde_json::from_value(disk).unwrap());
    let recorder = Recorder::default();
    let vm = Vm::builder().config(config).console(recorder.console()).start().unwrap();
    recorder.wait_for("ready\n");
    // The guest writes the number of the request at the start of each MiB.
    let number = || {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 0).unwrap();
        u64::from_le_bytes(bytes)
    };
    let goes_on = || {
        let first = number();
        wait_until("the guest writes on", || number() > first + 40);
    };
    let take = |name, longest| {
        let options = SnapshotOptions::default().max_pause(longest);
        vm.snapshot_with(&store, name, &options)
    };
    for _ in 0..3 {
        let error = take("none", IMPOSSIBLE).unwrap_err();
        assert!(matches!(error, Error::PauseTooLong { limit: IMPOSSIBLE, .. }), "{error:?}");
        goes_on();
    }
    let course = take("some", PLENTY).unwrap();
    assert!(course.disks_stopped > Duration::ZERO, "{course:?}");
    goes_on();
    vm.pause().unwrap();
    assert_eq!(take("paused", PLENTY).unwrap().disks_stopped, Duration::ZERO);
}
