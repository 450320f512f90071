//! A packed base that is much larger than the memory that an act may use. A merge uses no memory for it, and
//! a diff over it fetches nothing.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use rustix::fs::SeekFrom;
use volt_tests::program::binary;
use volt_tests::{MemoryLimit, Outcome, Recorder, Scratch, needs, small_guest};
use volt_vmm::{Compression, Packing, RestoreOptions, Snapshot, SnapshotOptions, Unpack, Vm};

use crate::memory::lazy::{store, wait_for};
use crate::snapshot::packed::flip_file;

/// MiB that the guest's initrd fills with noise.
const NOISE: usize = 200;
/// Bytes of memory that an act may use, its page cache included.
const LIMIT: u64 = 48 << 20;
/// MiB that the guest writes: more than the size that always makes a diff, and less than half of the noise.
const WRITTEN: u64 = 72;

/// Takes a packed snapshot `base`, mostly noise, before the guest writes its [`WRITTEN`] MiB.
fn base(scratch: &Scratch) -> Snapshot {
    let (initrd, recorder) = (scratch.path("initrd"), Recorder::default());
    let mut state = 1_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let noise: Vec<u8> = std::iter::repeat_with(next).take(NOISE << 17).flat_map(u64::to_le_bytes).collect();
    fs::write(&initrd, noise).unwrap();
    let builder = Vm::builder().kernel(small_guest()).initrd(initrd).memory_mib(NOISE as u64 + 120);
    let builder = builder.cmdline(format!("count mib={WRITTEN}")).console(recorder.console());
    let vm = builder.start().unwrap();
    wait_for(&recorder, 1);
    let packing = Some(Packing::new(Compression::Lz4));
    let options = SnapshotOptions::default().packing(packing);
    vm.snapshot_with(&store(scratch), "base", &options).unwrap();
    Snapshot::open(&store(scratch), "base").unwrap()
}

/// Restores a guest, lets it write `mib` MiB, and pauses it.
fn written(snapshot: &Snapshot, mib: u64) -> Vm {
    let recorder = Recorder::default();
    let options = RestoreOptions::default().console(recorder.console()).unpack(Unpack::OnTouch);
    let vm = snapshot.restore_with(options).unwrap();
    wait_for(&recorder, mib * 4 + 4);
    vm.pause().unwrap();
    vm
}

fn merge(limit: &MemoryLimit, diff: &Path, to: &Path) -> Outcome {
    let mut command = Command::new(binary());
    limit.apply(&mut command);
    Outcome::of_command(command.args(["snapshot", "merge"]).arg(diff).arg(to))
}

#[test]
fn merge_uses_no_memory_for_its_packed_base() {
    needs!(kvm, memory_limit, scratch_on_disk);
    let scratch = Scratch::new();
    let vm = written(&base(&scratch), 1);
    let options = SnapshotOptions::default().diff();
    vm.snapshot_with(&store(&scratch), "diff", &options).unwrap();
    drop(vm);
    let (diff, limit) = (scratch.path("diff"), MemoryLimit::of(LIMIT));
    merge(&limit, &diff, &scratch.path("merged")).succeeded();
    Outcome::of(["snapshot".as_ref(), "verify".as_ref(), scratch.path("merged").as_os_str()]).succeeded();
    // A merge that finds damage uses no more memory.
    let pages = diff.join("memory.diff");
    let at = rustix::fs::seek(File::open(&pages).unwrap(), SeekFrom::Data(0)).unwrap();
    flip_file(&pages, at);
    let outcome = merge(&limit, &diff, &scratch.path("not"));
    outcome.refused(&[pages.to_str().unwrap(), "is damaged: the digest of its pages is "]);
    assert!(!scratch.path("not").exists());
}

#[test]
fn large_diff_of_a_lazy_guest_fetches_nothing() {
    needs!(kvm, page_faults);
    let scratch = Scratch::new();
    let snapshot = base(&scratch);
    let vm = written(&snapshot, WRITTEN);
    let before = snapshot.chunks_fetched();
    let options = SnapshotOptions::default().diff();
    vm.snapshot_with(&store(&scratch), "diff", &options).unwrap();
    let after = snapshot.chunks_fetched();
    assert!(scratch.path("diff/memory.diff").exists(), "the snapshot is no diff");
    assert!(after <= before + 2, "{before}, then {after}");
    vm.snapshot_with(&store(&scratch), "again", &options).unwrap();
    assert!(snapshot.chunks_fetched() <= before + 2 && scratch.path("again/memory.diff").exists());
    drop(vm);
    Outcome::of(["snapshot".as_ref(), "verify".as_ref(), scratch.path("again").as_os_str()]).succeeded();
}
