//! Guests over packed memory that is filled on touch. Content is right, each chunk is fetched once, and a
//! chunk that cannot be fetched ends the guest with a reason.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use volt_tests::{
    Boot, Guest, Outcome, Recorder, Scratch, Snapshot, limited, needs, numbers, small_guest, wait_until,
    without_generation,
};
use volt_vmm::internal::pack::{ChunkKind, Pack};
use volt_vmm::internal::timing;
use volt_vmm::{
    Compression, Packing, Pool, RestoreOptions, RunState, SnapshotOptions, Store, Unpack, Vm, VmShape,
};

use crate::snapshot::restoring::goes_on_from;

pub(crate) const MIB: u64 = 8;

/// Returns a packed snapshot of a guest that counts over `mib` of checked memory, and the guest's output so
/// far.
pub(crate) fn packed(mib: u64, options: &[&str]) -> (Snapshot, String) {
    let mut guest = Guest::boot(&format!("count mib={mib}"));
    while guest.next_number("count") < mib * 4 + 4 {} // by then the guest has written all of its memory
    guest.pause();
    (guest.snapshot_as(options), guest.settled_output())
}

/// Lists the stored chunks of a pack with their ranges in the file.
pub(crate) fn stored(snapshot: &Snapshot) -> Vec<(u32, Range<u64>)> {
    let path = snapshot.memory_path();
    let pack = Pack::open(File::open(&path).unwrap(), &path).unwrap();
    let mut at = 0;
    let mut found = Vec::new();
    for chunk in 0..pack.geometry().chunks() {
        if let ChunkKind::Stored { len, same_as: None, .. } = pack.kind(chunk).unwrap() {
            found.push((chunk, at..at + u64::from(len)));
            at += u64::from(len);
        }
    }
    found
}

/// A packed snapshot `warm` of a counting guest, taken through the library in this process.
pub(crate) struct Warm {
    pub(crate) scratch: Scratch,
    pub(crate) snapshot: volt_vmm::Snapshot,
}

impl Warm {
    pub(crate) fn new() -> Self {
        let (scratch, recorder) = (Scratch::new(), Recorder::default());
        let cmdline = format!("count mib={MIB}");
        let builder = Vm::builder().kernel(small_guest()).cmdline(cmdline).memory_mib(64);
        let vm = builder.console(recorder.console()).start().unwrap();
        wait_for(&recorder, MIB * 4 + 4);
        let packing = Some(Packing::new(Compression::Lz4));
        let options = SnapshotOptions::default().packing(packing);
        vm.snapshot_with(&store(&scratch), "warm", &options).unwrap();
        let snapshot = volt_vmm::Snapshot::open(&store(&scratch), "warm").unwrap();
        Self { scratch, snapshot }
    }

    pub(crate) fn restore(&self, options: RestoreOptions) -> (Recorder, Vm) {
        let recorder = Recorder::default();
        let vm = self.snapshot.restore_with(options.console(recorder.console()));
        (recorder, vm.unwrap())
    }

    pub(crate) fn stored(&self) -> u64 {
        let path = self.scratch.path("warm/memory.pack");
        let pack = Pack::open(File::open(&path).unwrap(), &path).unwrap();
        let kinds = (0..pack.geometry().chunks()).map(|chunk| pack.kind(chunk).unwrap());
        kinds.filter(|kind| *kind != ChunkKind::Zero).count() as u64
    }
}

pub(crate) fn store(scratch: &Scratch) -> Store {
    Store::open(&format!("file://{}", scratch.directory().display())).unwrap()
}

fn last(recorder: &Recorder) -> u64 {
    numbers(&recorder.text(), "count").last().copied().unwrap_or(0)
}

pub(crate) fn wait_for(recorder: &Recorder, count: u64) {
    wait_until("the guest counts on", || last(recorder) >= count);
    assert!(!recorder.text().contains("WRONG"), "{}", recorder.text());
}

/// Waits until the guest has checked and changed all of its memory, and checked it again.
pub(crate) fn goes_on(recorder: &Recorder) {
    wait_until("the guest counts", || last(recorder) > 0);
    wait_for(recorder, last(recorder) + 2 * MIB * 4);
}

const PAUSED: fn(Unpack) -> RestoreOptions = |unpack| RestoreOptions::default().paused().unpack(unpack);

#[test]
fn clones_share_each_fetched_chunk() {
    needs!(kvm, page_faults);
    let warm = Warm::new();
    let (first, one) = warm.restore(RestoreOptions::default());
    goes_on(&first);
    let after_one = warm.snapshot.chunks_fetched();
    assert!(after_one > MIB * 16 && after_one <= warm.stored(), "{after_one} of {}", warm.stored());
    let others = [(); 3].map(|()| warm.restore(RestoreOptions::default()));
    others.iter().for_each(|(recorder, _)| goes_on(recorder));
    let after_all = warm.snapshot.chunks_fetched();
    assert!(after_all <= warm.stored() && after_all < after_one + 4, "{after_one}, then {after_all}");
    drop(one);
    goes_on(&warm.restore(RestoreOptions::default()).0);
}

#[test]
fn untouched_chunks_are_not_fetched() {
    needs!(kvm, page_faults);
    let warm = Warm::new();
    let (_, paused) = warm.restore(PAUSED(Unpack::OnTouch));
    assert_eq!((paused.state(), warm.snapshot.chunks_fetched()), (RunState::Paused, 0));
    drop(paused);
    assert_eq!(warm.restore(PAUSED(Unpack::AtOnce)).1.state(), RunState::Paused);
    assert_eq!(warm.snapshot.chunks_fetched(), 0);
}

#[test]
fn lazy_vm_is_rewound_before_all_memory_is_fetched() {
    needs!(kvm, page_faults);
    let warm = Warm::new();
    for rewindable in [true, false] {
        let mut options = RestoreOptions::default();
        options.rewindable = rewindable;
        let (recorder, vm) = warm.restore(options);
        for _ in 0..5 {
            wait_until("the guest counts", || last(&recorder) > 0);
            wait_for(&recorder, last(&recorder) + MIB);
            assert!(vm.rewind().unwrap().pages > 0);
        }
        vm.pause().unwrap();
        vm.rewind().unwrap();
        let memory = |vm: &Vm, name: &str| {
            vm.snapshot(&store(&warm.scratch), name).unwrap();
            without_generation(fs::read(warm.scratch.path(name).join("memory.snap")).unwrap())
        };
        let whole = warm.restore(PAUSED(Unpack::AtOnce)).1;
        let (rewound, whole) =
            (memory(&vm, &format!("rewound-{rewindable}")), memory(&whole, &format!("whole-{rewindable}")));
        assert!(rewound == whole, "byte for byte");
        vm.resume().unwrap();
        goes_on(&recorder);
    }
}

#[test]
fn pooled_vms_are_filled_on_touch() {
    needs!(kvm, page_faults);
    let warm = Warm::new();
    let pool = Arc::new(Pool::new(VmShape::of(warm.snapshot.config()), 2).unwrap());
    pool.wait_ready().unwrap();
    let clones = [(); 2].map(|()| {
        let recorder = Recorder::default();
        let pool = Some(Arc::clone(&pool));
        let options = RestoreOptions::default().console(recorder.console()).pool(pool);
        let (vm, steps) = timing::record(|| warm.snapshot.restore_with(options));
        assert!(steps.iter().any(|(step, _)| *step == "shell from the pool"));
        (recorder, vm.unwrap())
    });
    clones.iter().for_each(|(recorder, _)| goes_on(recorder));
    assert!(warm.snapshot.chunks_fetched() <= warm.stored());
}

/// Returns the content of a snapshot's memory file and its allocated blocks.
fn memory(scratch: &Scratch, name: &str) -> (Vec<u8>, u64) {
    let path = scratch.path(name).join("memory.snap");
    (without_generation(fs::read(&path).unwrap()), fs::metadata(&path).unwrap().blocks())
}

#[test]
fn lazy_vm_gives_the_same_snapshot_diff_and_fork_as_an_eager_one() {
    needs!(kvm, page_faults);
    let warm = Warm::new();
    let to = store(&warm.scratch);
    let diff = SnapshotOptions::default().diff();
    for (unpack, name) in [(Unpack::OnTouch, "lazy"), (Unpack::AtOnce, "eager")] {
        let (_, vm) = warm.restore(PAUSED(unpack.clone()));
        vm.snapshot_with(&to, &format!("{name}-diff"), &diff).unwrap();
        let [child] = <[Vm; 1]>::try_from(vm.fork([PAUSED(unpack.clone())]).unwrap()).unwrap();
        drop(vm);
        child.snapshot(&to, &format!("{name}-fork")).unwrap();
        warm.restore(PAUSED(unpack.clone())).1.snapshot(&to, &format!("{name}-full")).unwrap();
    }
    let same = |one: &[u8], other: &[u8]| assert!(one == other, "the files differ");
    let (full, blocks) = memory(&warm.scratch, "eager-full");
    for name in ["lazy-full", "lazy-fork", "eager-fork"] {
        let (other, of_other) = memory(&warm.scratch, name);
        same(&full, &other);
        assert!(of_other <= blocks + 64, "{name}: holes are holes: {of_other} and {blocks}");
    }
    // Both list the same pages, those of the generation alone.
    let diff = |name: &str| fs::metadata(warm.scratch.path(name).join("memory.diff")).unwrap().len();
    assert_eq!(diff("lazy-diff"), diff("eager-diff"));
    // Converting the pack gives the same memory.
    let [from, whole] = ["warm", "whole"].map(|name| warm.scratch.path(name).display().to_string());
    Outcome::of(["snapshot", "convert", &from, &whole, "--compress", "none"]).succeeded();
    same(&full, &memory(&warm.scratch, "whole").0);
}

#[test]
fn diff_fetches_no_untouched_chunk() {
    needs!(kvm, page_faults);
    let warm = Warm::new();
    let (said, vm) = warm.restore(RestoreOptions::default());
    wait_until("the guest counts", || last(&said) > 0);
    vm.pause().unwrap();
    let before = warm.snapshot.chunks_fetched();
    let to = store(&warm.scratch);
    let diff = SnapshotOptions::default().diff();
    vm.snapshot_with(&to, "diff", &diff).unwrap();
    let after = warm.snapshot.chunks_fetched();
    assert!(after == before && after < warm.stored(), "{before}, then {after} of {}", warm.stored());
    drop(vm);
    let recorder = Recorder::default();
    let options = RestoreOptions::default().console(recorder.console());
    let _vm = volt_vmm::Snapshot::open(&to, "diff").unwrap().restore_with(options).unwrap();
    goes_on(&recorder);
}

#[test]
fn lazy_vm_that_has_run_is_snapshotted_forked_and_diffed() {
    needs!(kvm, page_faults);
    let warm = Warm::new();
    let to = store(&warm.scratch);
    let (said, vm) = warm.restore(RestoreOptions::default());
    // By then the guest has touched a part of its memory.
    wait_until("the guest counts", || last(&said) > 0);
    let full = SnapshotOptions::default().packing(Packing::new(Compression::Lz4));
    let diff = SnapshotOptions::default().diff();
    vm.snapshot_with(&to, "diff", &diff).unwrap();
    let recorder = Recorder::default();
    let options = RestoreOptions::default().console(recorder.console());
    let children = vm.fork([options]).unwrap();
    vm.snapshot_with(&to, "full", &full).unwrap();
    drop(vm);
    goes_on(&recorder);
    children[0].snapshot_with(&to, "grandchild", &diff).unwrap();
    drop(children);
    for name in ["full", "diff", "grandchild"] {
        for unpack in [Unpack::OnTouch, Unpack::AtOnce] {
            let recorder = Recorder::default();
            let options = RestoreOptions::default().console(recorder.console()).unpack(unpack);
            let _vm = volt_vmm::Snapshot::open(&to, name).unwrap().restore_with(options).unwrap();
            goes_on(&recorder);
        }
    }
}

#[test]
fn guest_runs_from_chunks_of_any_size_and_codec() {
    needs!(kvm, page_faults);
    for options in [
        &["--compress", "zstd"][..],
        &["--compress", "lz4", "--chunk-size", "4K"],
        &["--compress", "zstd:1", "--chunk-size", "2M"],
        &["--compress", "lz4", "--least-saving", "100"],
    ] {
        let (snapshot, before) = packed(2, options);
        for options in [&[][..], &["--unpack"]] {
            let mut guest = snapshot.restore_as(options);
            goes_on_from(&before, &mut guest);
            guest.resume();
            while guest.next_number("count") < 60 {}
        }
    }
}

/// Restores the snapshot. Returns how the guest ended, or none if it counted `count` further.
fn runs_through(snapshot: &Snapshot, word: &str, count: u64) -> Option<Outcome> {
    let mut guest = snapshot.restore();
    let mut has_ended = false;
    wait_until(&format!("the guest counts {count} more of {word}, or ends"), || {
        has_ended = !guest.is_running();
        let said = numbers(&guest.output(), word);
        has_ended || said.last().is_some_and(|last| *last >= said[0] + count)
    });
    if has_ended {
        return Some(guest.wait_exit());
    }
    assert!(!guest.output().contains("WRONG"), "{}", guest.output());
    None
}

/// Damages each stored chunk in turn. The guest must end with an error or not touch the chunk.
fn each_damaged(snapshot: &Snapshot, word: &str, count: u64) {
    let (path, chunks) = (snapshot.memory_path(), stored(snapshot));
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let (mut ended, mut tried) = (0, 0);
    // The lab's emulated processor is slow: there every second chunk is tried, and few of these may be
    // touched.
    let (step, least) =
        if std::env::var_os("VOLT_LAB").is_some() { (2, 1) } else { (1, (chunks.len() / 4).max(1)) };
    for (chunk, place) in chunks.iter().step_by(step) {
        tried += 1;
        let at = (place.start + place.end) / 2;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x40], at).unwrap();
        if let Some(outcome) = runs_through(snapshot, word, count) {
            let words = [path.to_str().unwrap(), &format!("is damaged in chunk {chunk} ")];
            outcome.failed_with(&words);
            assert_eq!(outcome.status, 5, "{outcome:?}");
            assert!(!outcome.stdout.contains("WRONG"), "{outcome:?}");
            ended += 1;
        }
        file.write_all_at(&byte, at).unwrap();
    }
    assert!(runs_through(snapshot, word, count).is_none());
    assert!(ended >= least, "{ended} of {tried} chunks are touched");
}

#[test]
fn damaged_chunk_ends_the_guest_and_is_never_visible_to_it() {
    needs!(kvm, page_faults);
    each_damaged(&packed(2, &["--compress", "lz4"]).0, "count", 20);
}

#[test]
fn damaged_chunk_ends_only_the_vms_that_touch_it() {
    needs!(kvm, page_faults);
    let warm = Warm::new();
    let (said, sound) = warm.restore(RestoreOptions::default());
    goes_on(&said);
    let path = warm.scratch.path("warm/memory.pack");
    let file = File::options().write(true).open(&path).unwrap();
    let end = fs::metadata(&path).unwrap().len() - 8 * 4096; // the index is sound
    file.write_all_at(&vec![0xa5; end as usize], 0).unwrap();
    let damaged = volt_vmm::Snapshot::open(&store(&warm.scratch), "warm").unwrap();
    for _ in 0..3 {
        let why = limited("a VM with damaged memory ends", || damaged.restore().unwrap().wait())
            .unwrap_err()
            .to_string();
        assert!(why.contains("cannot be read") && why.contains("is damaged in chunk"), "{why}");
    }
    goes_on(&said);
    assert_eq!(sound.state(), RunState::Running);
    // Chunks that were fetched before are verified and stay.
    goes_on(&warm.restore(RestoreOptions::default()).0);
}

/// Returns a packed snapshot of a guest that goes through its disk. Each restored VM has its own layer.
fn guest_with_a_disk() -> (Scratch, Snapshot) {
    let scratch = Scratch::new();
    let image = scratch.fresh("image");
    fs::write(&image, vec![7; 1 << 20]).unwrap();
    let words = format!("path={},layer={},id=root", image.display(), scratch.fresh("layer").display());
    let mut guest = Boot::small("disk").device(["--disk".to_owned(), words]).start();
    while guest.next_number("sector") < 70 {}
    let snapshot = guest.snapshot_as(&["--compress", "zstd", "--chunk-size", "4K"]);
    (scratch, snapshot)
}

#[test]
fn disk_access_to_damaged_chunk_ends_guest() {
    needs!(kvm, page_faults);
    let (_scratch, snapshot) = guest_with_a_disk();
    each_damaged(&snapshot, "sector", 40);
}

#[test]
fn disk_access_to_damaged_chunk_ends_only_its_vm() {
    needs!(kvm, page_faults);
    let (_scratch, snapshot) = guest_with_a_disk();
    let warm = Warm::new();
    let (said, _other) = warm.restore(RestoreOptions::default());
    let (path, chunks) = (snapshot.memory_path(), stored(&snapshot));
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let (to, name) = Store::split(snapshot.directory()).unwrap();
    let mut ended = 0;
    for (chunk, place) in chunks {
        let (at, mut byte) = ((place.start + place.end) / 2, [0]);
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x40], at).unwrap();
        let recorder = Recorder::default();
        let options = RestoreOptions::default().console(recorder.console());
        let vm = volt_vmm::Snapshot::open(&to, &name).unwrap().restore_with(options).unwrap();
        let is_through = || numbers(&recorder.text(), "sector").len() > 40;
        wait_until("the VM ends or goes on", || vm.state() == RunState::Ended || is_through());
        if vm.state() == RunState::Ended {
            let why = limited("a VM that has ended says why", || vm.wait()).unwrap_err().to_string();
            assert!(why.contains(&format!("is damaged in chunk {chunk} ")), "{why}");
            ended += 1;
        }
        drop(vm);
        file.write_all_at(&byte, at).unwrap();
    }
    assert!(ended > 3, "{ended} chunks are touched");
    goes_on(&said);
}

#[test]
fn truncated_pack_ends_its_guest() {
    needs!(kvm, page_faults);
    let (snapshot, _) = packed(32, &["--compress", "lz4", "--chunk-size", "4K"]);
    let mut guest = snapshot.restore();
    guest.next_number("count");
    guest.pause();
    let file = File::options().write(true).open(snapshot.memory_path()).unwrap();
    file.set_len(4096).unwrap();
    guest.resume();
    let outcome = guest.wait_exit();
    outcome.failed_with(&["its memory cannot be read", snapshot.memory_path().to_str().unwrap()]);
    assert_eq!(outcome.status, 5, "{outcome:?}");
    assert!(!outcome.stdout.contains("WRONG"), "{outcome:?}");
}

#[test]
fn guest_survives_the_removal_of_its_pack() {
    needs!(kvm, page_faults);
    let (snapshot, before) = packed(4, &["--compress", "lz4"]);
    let mut guest = snapshot.restore_as(&["--paused"]);
    assert!(guest.ask("GET", "/", "").1.contains(r#""state":"Paused""#)); // it has it open
    snapshot.remove();
    guest.resume();
    goes_on_from(&before, &mut guest);
}

#[test]
fn snapshot_of_damaged_memory_fails_and_the_guest_goes_on() {
    needs!(kvm, page_faults);
    // One chunk per page: the guest never touches the code of its other behaviours, so the snapshot has to
    // fetch it.
    let (snapshot, _) = packed(4, &["--compress", "lz4", "--chunk-size", "4K"]);
    let mut guest = snapshot.restore();
    // Each number is 64 pages: the guest has gone twice through all that it touches.
    let first = guest.next_number("count");
    while guest.next_number("count") < first + 2 * 16 + 1 {}
    let chunks = stored(&snapshot);
    let file = File::options().read(true).write(true).open(snapshot.memory_path()).unwrap();
    for (_, place) in &chunks {
        file.write_all_at(&vec![0xa5; (place.end - place.start) as usize], place.start).unwrap();
    }
    let place = guest.scratch().fresh("place");
    guest.try_snapshot(&place).refused(&["memory.pack", "is damaged in chunk"]);
    assert!(!place.exists());
    let count = guest.next_number("count");
    while guest.next_number("count") < count + 40 {}
}

#[test]
fn deflated_balloon_of_a_clone_returns_the_pages_of_the_snapshot() {
    needs!(kvm, page_faults);
    let mut guest = Boot::small("balloon mib=12").device(["--balloon"]).start();
    guest.wait_for("ready");
    let snapshot = guest.snapshot_as(&["--compress", "lz4"]);
    let mut clone = snapshot.restore();
    let ask = |guest: &mut Guest, mib: u64| {
        assert_eq!(
            guest.ask("PATCH", "/balloon", &format!(r#"{{"amount_mib":{mib}}}"#)),
            (204, String::new())
        );
        let found = (guest.next_number("empty"), guest.next_number("first"));
        assert_eq!(guest.next_number("balloon"), mib * 256);
        found
    };
    ask(&mut clone, 8);
    // The pages come back with the snapshot's content, chunk by chunk.
    assert_eq!(ask(&mut clone, 0), (0, 8 * 256));
    clone.type_in("c");
    assert_eq!(clone.next_number("checked"), 12 * 256);
}
