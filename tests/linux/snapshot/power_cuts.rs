//! Power cuts: a snapshot is complete or absent, and complete once its success was reported. A guest's
//! records survive once its disk has flushed them. Small guests run on a file system whose writes are logged,
//! and parts of the log are replayed in many ways.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use volt_tests::power::{CrashDisk, Writeback};
use volt_tests::{Boot, Guest, KvmShim, Outcome, Scratch, Snapshot, needs};
use volt_vmm::snapshot::WORKING_SET_FILE;

const DISK_MIB: u64 = 96;
const SLOTS: u64 = 32;
const SECTOR: u64 = 512;
/// Sectors between the slots of a raw disk: one page.
const CLOSE: u64 = 8;
/// Sectors between the slots of a disk with a layer: more than a cluster.
const FAR: u64 = 136;
/// The mark in the log after the preparations, and the start of a mark for a reported success.
const BEGIN: &str = "begin";
const PROMISE: &str = "promised-";

/// Returns how many states of each recording are tried: 10, or the number in `VOLT_POWER_CUTS`.
fn states() -> usize {
    std::env::var("VOLT_POWER_CUTS").map_or(10, |given| given.parse().expect("VOLT_POWER_CUTS is a number"))
}

fn seed() -> u64 {
    std::env::var("VOLT_POWER_SEED").map_or(1, |given| given.parse().expect("VOLT_POWER_SEED is a number"))
}

// ---- Snapshots ----

/// Makes an image with record 0 in each slot.
fn image(path: &Path, stride: u64) -> PathBuf {
    let file = File::create(path).unwrap();
    file.set_len(SLOTS * stride * SECTOR).unwrap();
    for sector in 0..SLOTS * stride {
        let words = (0..SECTOR / 8).map(|at| sector * SECTOR / 8 + at);
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        file.write_all_at(&bytes, sector * SECTOR).unwrap();
    }
    file.sync_all().unwrap();
    path.to_owned()
}

/// Starts a guest that checks its records on a disk with a layer. The base lies outside the power cuts.
fn busy(scratch: &Scratch) -> Guest {
    let base = image(&scratch.fresh("base"), FAR);
    let words = format!("path={},layer={},id=root", base.display(), scratch.fresh("layer").display());
    let boot = Boot::small(&format!("records verify=1 slots={SLOTS} stride={FAR}"));
    // Early writeback would hide a missing sync.
    let shim = KvmShim::new().without_early_writeback();
    let mut guest = boot.device(["--disk".to_owned(), words]).on_kvm(&shim).start();
    goes_on(&mut guest, 8);
    guest
}

/// Waits until the guest has written `records` more records and checked those that they replace.
fn goes_on(guest: &mut Guest, records: u64) {
    let now = guest.next_number("synced");
    while guest.next_number("synced") < now + records {}
}

/// Lets `prepare` and then `act` write to a disk, and checks the snapshot that `act` makes after power cuts.
fn is_whole_or_absent(prepare: impl FnOnce(&Path), act: impl FnOnce(&Path)) {
    let disk = CrashDisk::new(DISK_MIB);
    prepare(&disk.place());
    disk.sync();
    disk.mark(BEGIN);
    act(&disk.place().join("made"));
    disk.mark(&format!("{PROMISE}made"));
    let recording = disk.finish();
    let scratch = Scratch::new();
    let mut turn = 0;
    recording.after_each(&recording.states(BEGIN, PROMISE, states(), seed()), |place, marks| {
        let made = Snapshot::at(place.join("made"), &scratch);
        let promised = marks.iter().any(|mark| mark.starts_with(PROMISE));
        if !made.directory().exists() {
            assert!(!promised, "the snapshot is gone, but its success was reported");
            return;
        }
        made.verify().succeeded();
        turn += 1;
        // A restore is slow, but it checks the layers' content, which verify cannot.
        if promised || turn % 4 == 0 {
            let mut restored = made.restore();
            goes_on(&mut restored, SLOTS + 4);
        }
    });
}

/// Records the working set of a guest beside its snapshot.
fn record_working_set(snapshot: &Snapshot) {
    let mut guest = snapshot.restore_as(&["--record", "api"]);
    goes_on(&mut guest, 8);
    assert_eq!(guest.ask("PUT", "/v1/vm/record", "").0, 200);
}

fn snapshot(guest: &Guest, to: &Path, options: &[&str]) {
    guest.try_snapshot_as(to, options).succeeded();
}

fn command(words: &[&str], paths: &[&Path]) {
    let words = words.iter().map(AsRef::as_ref);
    Outcome::of(words.chain(paths.iter().map(|path| path.as_os_str()))).succeeded();
}

#[test]
fn snapshot_is_complete_or_absent_after_a_power_cut() {
    needs!(kvm, log_writes);
    let scratch = Scratch::new();
    let guest = busy(&scratch);
    is_whole_or_absent(|_| (), |to| snapshot(&guest, to, &[]));
}

/// The guest has a disk without a layer and never flushes. Its memory knows its writes, so the snapshot must
/// sync them.
#[test]
fn restored_guest_finds_its_disk_unchanged_after_a_power_cut() {
    needs!(kvm, log_writes);
    let scratch = Scratch::new();
    let disk = CrashDisk::new(DISK_MIB);
    let path = image(&disk.place().join("root.img"), CLOSE);
    let words = format!("path={},id=root,cache=unsafe", path.display());
    let boot = Boot::small(&format!("records verify=1 slots={SLOTS} stride={CLOSE}"));
    let mut guest = boot.device(["--disk".to_owned(), words]).start();
    goes_on(&mut guest, 8);
    guest.pause();
    disk.mark(BEGIN);
    snapshot(&guest, &disk.place().join("made"), &[]);
    disk.mark(&format!("{PROMISE}made"));
    guest.kill();
    let recording = disk.finish();
    recording.after_each(&recording.states(BEGIN, PROMISE, states(), seed()), |place, marks| {
        let made = Snapshot::at(place.join("made"), &scratch);
        if !made.directory().exists() {
            assert!(!marks.iter().any(|mark| mark.starts_with(PROMISE)), "the snapshot is gone");
            return;
        }
        let there = format!("id=root,path={}", place.join("root.img").display());
        goes_on(&mut made.restore_as(&["--disk", &there]), SLOTS + 4);
    });
}

#[test]
fn packed_snapshot_is_complete_or_absent_after_a_power_cut() {
    needs!(kvm, log_writes);
    let scratch = Scratch::new();
    let guest = busy(&scratch);
    is_whole_or_absent(|_| (), |to| snapshot(&guest, to, &["--compress", "lz4"]));
}

#[test]
fn diff_is_complete_or_absent_after_a_power_cut() {
    needs!(kvm, log_writes);
    let scratch = Scratch::new();
    let mut guest = busy(&scratch);
    let base = guest.snapshot();
    goes_on(&mut guest, 8);
    is_whole_or_absent(|_| (), |to| snapshot(&guest, to, &["--diff"]));
    drop(base);
}

#[test]
fn merge_is_complete_or_absent_after_a_power_cut() {
    needs!(kvm, log_writes);
    let scratch = Scratch::new();
    let mut guest = busy(&scratch);
    let base = guest.snapshot();
    goes_on(&mut guest, 8);
    let diff = guest.snapshot_as(&["--diff"]);
    drop(guest);
    record_working_set(&diff);
    is_whole_or_absent(|_| (), |to| command(&["snapshot", "merge"], &[diff.directory(), to]));
    drop(base);
}

#[test]
fn conversion_is_complete_or_absent_after_a_power_cut() {
    needs!(kvm, log_writes);
    let scratch = Scratch::new();
    let guest = busy(&scratch);
    let raw = guest.snapshot();
    drop(guest);
    record_working_set(&raw);
    let convert = |from: &Path, to: &Path, options: &[&str]| {
        command(&[&["snapshot", "convert"], options].concat(), &[from, to]);
    };
    is_whole_or_absent(|_| (), |to| convert(raw.directory(), to, &["--compress", "zstd"]));
    let packed = raw.converted(&["--compress", "lz4"]);
    is_whole_or_absent(|_| (), |to| convert(packed.directory(), to, &["--compress", "none"]));
}

#[test]
fn working_set_is_complete_or_absent_after_a_power_cut() {
    needs!(kvm, log_writes);
    let scratch = Scratch::new();
    let guest = busy(&scratch);
    let disk = CrashDisk::new(DISK_MIB);
    let made = |place: &Path| Snapshot::at(place.join("made"), &scratch);
    snapshot(&guest, made(&disk.place()).directory(), &[]);
    drop(guest);
    disk.sync();
    disk.mark(BEGIN);
    record_working_set(&made(&disk.place()));
    disk.mark(&format!("{PROMISE}recorded"));
    let recording = disk.finish();
    recording.after_each(&recording.states(BEGIN, PROMISE, states(), seed()), |place, marks| {
        let made = made(place);
        made.verify().succeeded();
        let promised = marks.iter().any(|mark| mark.starts_with(PROMISE));
        let there = volt_tests::scratch::list(made.directory()).iter().any(|name| name == WORKING_SET_FILE);
        assert!(there || !promised, "the working set is gone, but its success was reported");
    });
}

// ---- Records of a guest ----

/// Marks each flush of a guest as a promise, while the host writes its disk back at random. The guest goes on
/// only after the mark, because its next flush could make up for this one.
fn record(disk: &CrashDisk, words: &str, stride: u64, written: &Path) {
    let boot = Boot::small(&format!("records slots={SLOTS} stride={stride} paced=1"));
    let mut guest = boot.device(["--disk", words]).start();
    let mut synced = guest.next_number("synced");
    let writeback = Writeback::of(written);
    let end = synced + 3 * SLOTS;
    while synced < end {
        synced = guest.type_in("?").next_number("synced");
        disk.mark(&format!("{PROMISE}{synced}"));
    }
    drop(writeback);
    guest.signal(Signal::KILL);
    guest.wait_exit();
}

/// Checks that each slot holds the last record promised for it or a later one.
fn has_kept(found: &[u64], promised: u64) {
    assert_eq!(found.len() as u64, SLOTS);
    for (slot, &found) in (0_u64..).zip(found) {
        let is_of_slot = |record: u64| record * 7 % SLOTS == slot;
        assert!(found == 0 || is_of_slot(found), "slot {slot} holds record {found}");
        let last = (1..=promised).rev().take(SLOTS as usize).find(|record| is_of_slot(*record)).unwrap_or(0);
        assert!(found >= last, "slot {slot} holds record {found}; {last} was synced before {promised}");
    }
}

fn last_promise(marks: &[&str]) -> u64 {
    marks.iter().filter_map(|mark| mark.strip_prefix(PROMISE)?.parse().ok()).max().unwrap_or(0)
}

/// Reads the records of a raw image.
fn in_image(path: &Path, stride: u64) -> Vec<u64> {
    let file = File::open(path).unwrap();
    let read = |slot: u64| {
        let mut sector = [0; SECTOR as usize];
        file.read_exact_at(&mut sector, slot * stride * SECTOR).unwrap();
        let mut words = sector.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        let first = words.next().unwrap();
        let start = slot * stride * SECTOR / 8;
        assert!(
            words.zip(start + 1..).all(|(word, at)| word == first >> 32 << 32 | at),
            "slot {slot} is torn"
        );
        first >> 32
    };
    (0..SLOTS).map(read).collect()
}

#[test]
fn raw_disk_keeps_each_synced_record_after_a_power_cut() {
    needs!(kvm, log_writes);
    for engine in ["sync", "io_uring"] {
        let disk = CrashDisk::new(DISK_MIB);
        let path = image(&disk.place().join("root.img"), CLOSE);
        disk.sync();
        disk.mark(BEGIN);
        record(&disk, &format!("path={},engine={engine}", path.display()), CLOSE, &path);
        let recording = disk.finish();
        recording.after_each(&recording.states(BEGIN, PROMISE, states(), seed()), |place, marks| {
            has_kept(&in_image(&place.join("root.img"), CLOSE), last_promise(marks));
        });
    }
}

#[test]
fn layered_disk_keeps_each_synced_record_after_a_power_cut() {
    needs!(kvm, log_writes);
    let scratch = Scratch::new();
    let base = image(&scratch.fresh("base"), FAR);
    for engine in ["sync", "io_uring"] {
        let words =
            |layer: &Path| format!("path={},layer={},engine={engine}", base.display(), layer.display());
        let disk = CrashDisk::new(DISK_MIB);
        let layer = disk.place().join("root.layer");
        disk.mark(BEGIN);
        record(&disk, &words(&layer), FAR, &layer);
        let recording = disk.finish();
        recording.after_each(&recording.states(BEGIN, PROMISE, states(), seed()), |place, marks| {
            let promised = last_promise(marks);
            let layer = place.join("root.layer");
            if promised == 0 {
                return; // the layer may be incomplete
            }
            let boot = Boot::small(&format!("records check=1 slots={SLOTS} stride={FAR}"));
            let outcome = boot.device(["--disk".to_owned(), words(&layer)]).outcome();
            outcome.succeeded();
            assert!(outcome.stdout.contains("checked"), "{outcome:?}");
            has_kept(&volt_tests::numbers(&outcome.stdout, "record"), promised);
        });
    }
}
