//! Snapshots in two files: state, and memory as Firecracker's clients know it.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::SeekFrom;
use serde_json::json;
use volt_tests::{Boot, Child, Guest, Scratch, needs, without_generation};

use crate::snapshot::diffs::{counting, goes_on};

const MIB: u64 = 1 << 20;

/// Paths of a state file and a memory file.
#[derive(Clone, Debug)]
pub struct Pair {
    pub state: PathBuf,
    pub memory: PathBuf,
    /// Lives as long as the files.
    pub scratch: Scratch,
}

impl Pair {
    pub fn fresh(scratch: &Scratch) -> Self {
        let scratch = scratch.clone();
        Self { state: scratch.fresh("state"), memory: scratch.fresh("memory"), scratch }
    }

    fn try_take(&self, guest: &Guest, more: &[(&str, &str)]) -> (u16, String) {
        let mut body = json!({"snapshot_path": self.state, "mem_file_path": self.memory});
        more.iter().for_each(|(field, value)| body[field] = (*value).into());
        guest.ask("PUT", "/snapshot/create", &body.to_string())
    }

    /// Takes a snapshot of a kind.
    pub fn take(&self, guest: &Guest, kind: &str) {
        assert_eq!(self.try_take(guest, &[("snapshot_type", kind)]), (204, String::new()));
    }

    fn try_load(&self) -> (Guest, u16, String) {
        let guest = Guest::waiting();
        let body = json!({
            "snapshot_path": self.state,
            "mem_backend": {"backend_type": "File", "backend_path": self.memory},
            "resume_vm": true,
        });
        let (status, answer) = guest.ask("PUT", "/snapshot/load", &body.to_string());
        (guest, status, answer)
    }

    pub fn load(&self) -> Guest {
        let (guest, status, answer) = self.try_load();
        assert_eq!((status, &*answer), (204, ""));
        guest
    }

    pub fn bytes(&self) -> Vec<u8> {
        without_generation(fs::read(&self.memory).unwrap())
    }
}

/// Copies the data of a diff over the memory of its base, as Firecracker's snapshot-editor does. Returns the
/// number of bytes.
pub fn merge(diff: &Path, base: &Path) -> u64 {
    let (diff, base) = (File::open(diff).unwrap(), File::options().write(true).open(base).unwrap());
    let (mut at, mut copied) = (0, 0);
    while let Ok(start) = rustix::fs::seek(&diff, SeekFrom::Data(at)) {
        at = rustix::fs::seek(&diff, SeekFrom::Hole(start)).unwrap();
        let mut bytes = vec![0; (at - start) as usize];
        diff.read_exact_at(&mut bytes, start).unwrap();
        base.write_all_at(&bytes, start).unwrap();
        copied += at - start;
    }
    copied
}

fn blocks(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn snapshot_in_two_files_restores() {
    needs!(kvm);
    let mut guest = counting(8);
    let pair = Pair::fresh(guest.scratch());
    pair.take(&guest, "Full");
    goes_on(&mut guest, 8);
    let mut clones = [pair.load(), pair.load()];
    clones.iter_mut().for_each(|clone| goes_on(clone, 8));
    let old = Guest::waiting();
    let body = json!({"snapshot_path": pair.state, "mem_file_path": pair.memory, "resume_vm": true});
    assert_eq!(old.ask("PUT", "/snapshot/load", &body.to_string()), (204, String::new()));
    for path in [&pair.state, &pair.memory] {
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o7777, 0o600);
    }
}

#[test]
fn diffs_copied_over_their_base_equal_a_full_snapshot() {
    needs!(kvm);
    let guest = counting(8);
    let [base, first, second] = std::array::from_fn(|_| Pair::fresh(guest.scratch()));
    base.take(&guest, "Full");
    drop(guest);
    let mut guest = base.load();
    goes_on(&mut guest, 8);
    first.take(&guest, "Diff");
    goes_on(&mut guest, 8);
    guest.pause();
    second.take(&guest, "Diff");
    let full = guest.snapshot();
    assert!(base.bytes() != without_generation(fs::read(full.memory_path()).unwrap()));
    merge(&first.memory, &base.memory);
    merge(&second.memory, &base.memory);
    assert!(base.bytes() == without_generation(fs::read(full.memory_path()).unwrap()));
    let merged = Pair { state: second.state.clone(), ..base };
    goes_on(&mut merged.load(), 8);
}

/// A fork and a rewind read the dirty log, which clears it. The next diff has these pages nevertheless.
#[test]
fn acts_between_two_snapshots_cost_a_diff_no_page() {
    needs!(kvm);
    let first = counting(8);
    let origin = Pair::fresh(first.scratch());
    origin.take(&first, "Full");
    drop(first);
    let acts: [fn(&Guest); 2] = [
        |guest| drop(Child::fork(guest.socket(), guest.scratch().directory(), &[("a", json!({}))], true)),
        |guest| assert_eq!(guest.ask("PUT", "/v1/vm/rewind", "{}").0, 200),
    ];
    for (number, act) in acts.into_iter().enumerate() {
        let mut guest = origin.load();
        let [base, diff] = std::array::from_fn(|_| Pair::fresh(&origin.scratch));
        goes_on(&mut guest, 8);
        base.take(&guest, "Full");
        goes_on(&mut guest, 8);
        // Afterwards the guest writes no page once more.
        guest.pause();
        act(&guest);
        diff.take(&guest, "Diff");
        let full = guest.snapshot();
        merge(&diff.memory, &base.memory);
        let is_same = base.bytes() == without_generation(fs::read(full.memory_path()).unwrap());
        assert!(is_same, "act {number}: the merged memory differs");
    }
}

#[test]
fn diff_follows_a_snapshot_in_a_directory() {
    needs!(kvm);
    let mut guest = counting(8);
    let directory = guest.snapshot();
    goes_on(&mut guest, 8);
    guest.pause();
    let [whole, diff] = std::array::from_fn(|_| Pair::fresh(guest.scratch()));
    diff.take(&guest, "Diff");
    let full = guest.snapshot();
    fs::write(&whole.memory, fs::read(directory.memory_path()).unwrap()).unwrap();
    merge(&diff.memory, &whole.memory);
    assert!(whole.bytes() == without_generation(fs::read(full.memory_path()).unwrap()));
}

/// Firecracker's clients let a diff go over the memory file of the snapshot before it.
#[test]
fn diff_over_its_base_is_a_whole_snapshot() {
    needs!(kvm);
    let mut guest = counting(8);
    let pair = Pair::fresh(guest.scratch());
    pair.take(&guest, "Full");
    for _ in 0..2 {
        goes_on(&mut guest, 8);
        guest.pause();
        pair.take(&guest, "Diff");
        let full = guest.snapshot();
        guest.resume();
        assert!(pair.bytes() == without_generation(fs::read(full.memory_path()).unwrap()));
        goes_on(&mut pair.load(), 8);
    }
    // A file of another length is no base.
    guest.pause();
    pair.take(&guest, "Diff");
    fs::write(&pair.memory, "short").unwrap();
    pair.take(&guest, "Diff");
    assert!(blocks(&pair.memory) < MIB, "{}", blocks(&pair.memory));
}

#[test]
fn diff_after_a_diff_has_only_pages_written_since() {
    needs!(kvm);
    let mut guest = Boot::small("erase mib=16").start();
    guest.wait_for("ready");
    guest.pause();
    let [first, second] = std::array::from_fn(|_| Pair::fresh(guest.scratch()));
    // The first one of a booted VM is complete.
    first.take(&guest, "Diff");
    second.take(&guest, "Diff");
    let (whole, nothing) = (blocks(&first.memory), blocks(&second.memory));
    assert!(whole >= 16 * MIB && nothing < MIB, "{nothing} of {whole} bytes");
    first.load();
}

#[test]
fn page_that_became_zero_is_data_in_a_diff() {
    needs!(kvm);
    let mut guest = Boot::small("erase mib=4").start();
    guest.wait_for("ready");
    let [base, diff] = std::array::from_fn(|_| Pair::fresh(guest.scratch()));
    base.take(&guest, "Full");
    guest.type_in("x").wait_for("erased");
    guest.pause();
    diff.take(&guest, "Diff");
    let full = guest.snapshot();
    assert!(merge(&diff.memory, &base.memory) >= 4 * MIB);
    assert!(base.bytes() == without_generation(fs::read(full.memory_path()).unwrap()));
}

#[test]
fn snapshot_replaces_the_files_that_its_vm_maps() {
    needs!(kvm);
    let guest = counting(8);
    let pair = Pair::fresh(guest.scratch());
    pair.take(&guest, "Full");
    drop(guest);
    let mut clone = pair.load();
    for _ in 0..3 {
        let before = fs::metadata(&pair.memory).unwrap().ino();
        goes_on(&mut clone, 8);
        pair.take(&clone, "Full");
        assert_ne!(fs::metadata(&pair.memory).unwrap().ino(), before);
        let mut next = pair.load();
        goes_on(&mut clone, 8);
        goes_on(&mut next, 8);
        clone = next;
    }
    let names = fs::read_dir(pair.state.parent().unwrap()).unwrap();
    let hidden = names.filter(|name| name.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'));
    assert_eq!(hidden.count(), 0, "nothing else is left");
}

#[test]
fn bad_files_are_refused_and_the_guest_goes_on() {
    needs!(kvm);
    let mut guest = counting(4);
    let good = Pair::fresh(guest.scratch());
    let directory = guest.scratch().fresh("directory");
    fs::create_dir(&directory).unwrap();
    let refused = |pair: &Pair, more: &[(&str, &str)], words: &str| {
        let (status, answer) = pair.try_take(&guest, more);
        assert!(status == 400 && answer.contains(words), "{status} {answer}");
    };
    let with_memory = |memory: &Path| Pair { memory: memory.to_owned(), ..good.clone() };
    refused(&with_memory(&directory), &[], "not a regular file");
    refused(&with_memory(Path::new("/missing/memory")), &[], "No such file");
    refused(&with_memory(&good.state), &[], "two paths");
    refused(&good, &[("compress", "lz4")], "compress: memory in a file of its own is not packed");
    assert!(!good.state.exists() && !good.memory.exists());
    good.take(&guest, "Full");
    goes_on(&mut guest, 4);

    let load = |pair: &Pair, words: &str| {
        let (waiting, status, answer) = pair.try_load();
        assert!(status == 400 && answer.contains(words), "{status} {answer}");
        drop(waiting);
    };
    load(&with_memory(&good.state), "bytes long, but its state says");
    load(&with_memory(&directory), "is a directory");
    load(&Pair { state: good.memory.clone(), ..good.clone() }, "bytes long; a state file has at most");
    let short = good.scratch.fresh("short");
    fs::write(&short, "").unwrap();
    load(&with_memory(&short), "is 0 bytes long");
    load(&Pair { state: short, ..good.clone() }, "is empty");
    goes_on(&mut good.load(), 4);
}
