//! Snapshots with packed memory, sound and damaged: taken, restored, converted, verified and inspected.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use volt_tests::damage::{open_to_change, overwrite};
use volt_tests::scratch::list;
use volt_tests::{Boot, Guest, Outcome, Scratch, Snapshot, needs};

use crate::snapshot::restoring::{counting, goes_on_from};

/// The end of a pack of 64 MiB in chunks of 64 KiB: 4 blocks of index, a table of 4 entries, the footer.
const INDEX: u64 = 4 * 4096;
const TABLE: u64 = 4 * 16;
const FOOTER: u64 = 80;

/// Returns a packed snapshot of a guest that counts over 8 MiB of checked memory, and its output so far.
fn packed(options: &[&str]) -> (Snapshot, String) {
    let mut guest = Guest::boot("count mib=8");
    guest.wait_for("count 40"); // by then the guest has written all of its memory
    guest.pause();
    let snapshot = guest.snapshot_as(options);
    (snapshot, guest.settled_output())
}

fn same_files(one: &Snapshot, other: &Snapshot) -> bool {
    let content = |snapshot: &Snapshot| {
        (fs::read(snapshot.state_path()).unwrap(), fs::read(snapshot.memory_path()).unwrap())
    };
    content(one) == content(other)
}

/// Returns the state without the parts that depend on the memory file.
fn all_but_memory_file(snapshot: &Snapshot) -> serde_json::Value {
    let mut state = snapshot.state();
    let file = state["metadata"].as_object_mut().unwrap().remove("memory_file");
    assert!(file.is_some(), "{state}");
    state.as_object_mut().unwrap().remove("crc64");
    state
}

#[test]
fn guest_goes_on_from_a_packed_snapshot() {
    needs!(kvm, page_faults);
    for options in [
        &["--compress", "lz4"][..],
        &["--compress", "zstd"],
        &["--compress", "zstd:19", "--chunk-size", "4K"],
        &["--compress", "lz4", "--chunk-size", "2M", "--least-saving", "50"],
    ] {
        let (snapshot, before) = packed(options);
        assert_eq!(list(snapshot.directory()), ["memory.pack", "state.json"], "{options:?}");
        let untouched = snapshot.fingerprint();
        let mut clones = [snapshot.restore(), snapshot.restore()];
        for clone in &mut clones {
            goes_on_from(&before, clone);
        }
        assert_eq!(snapshot.fingerprint(), untouched);
        assert!(untouched[1].0 < 16 << 20, "{options:?}: {} bytes", untouched[1].0);
    }
}

#[test]
fn clone_of_a_packed_snapshot_can_be_snapshotted() {
    needs!(kvm, page_faults);
    let (snapshot, before) = packed(&["--compress", "lz4"]);
    let mut clone = snapshot.restore();
    goes_on_from(&before, &mut clone);
    let said = before + &clone.output();
    let (again, raw) = (clone.snapshot_as(&["--compress", "zstd"]), clone.snapshot());
    drop(clone);
    goes_on_from(&said, &mut again.restore());
    goes_on_from(&said, &mut raw.restore());
    // Snapshots of one pause have the same memory.
    let unpacked = again.converted(&["--compress", "none"]);
    assert!(fs::read(unpacked.memory_path()).unwrap() == fs::read(raw.memory_path()).unwrap());
}

#[test]
fn memory_above_4_gib_is_packed() {
    needs!(kvm, page_faults);
    let mut guest = Boot::small("count mib=8").memory("4G").start();
    guest.wait_for("count 40"); // half of the pages lie below 3 GiB, half at the top of the fifth GiB
    guest.pause();
    let snapshot = guest.snapshot_as(&["--compress", "lz4"]);
    let before = guest.kill();
    assert!(fs::metadata(snapshot.memory_path()).unwrap().len() < 32 << 20);
    let mut restored = snapshot.restore();
    goes_on_from(&before, &mut restored);
    restored.resume();
    while restored.next_number("count") < 80 {}
}

#[test]
fn conversion_there_and_back_keeps_the_snapshot() {
    needs!(kvm, page_faults);
    let (raw, before) = counting(8);
    let lz4 = raw.converted(&["--compress", "lz4"]);
    let zstd = lz4.converted(&["--compress", "zstd:9", "--chunk-size", "256K"]);
    let small = zstd.converted(&["--compress", "lz4", "--chunk-size", "4K"]);
    for packed in [&lz4, &zstd, &small] {
        assert_eq!(list(packed.directory()), ["memory.pack", "state.json"]);
        assert_eq!(all_but_memory_file(packed), all_but_memory_file(&raw));
        packed.verify().succeeded();
        goes_on_from(&before, &mut packed.restore());
    }
    // Packing in the same way gives the same files, whatever the source.
    assert!(same_files(&small.converted(&["--compress", "lz4"]), &lz4));
    for back in [small.converted(&["--compress", "none"]), raw.converted(&["--compress", "none"])] {
        assert!(same_files(&back, &raw));
        assert_eq!(list(back.directory()), ["memory.snap", "state.json"]);
    }
    // Unpacking a pack keeps the holes.
    let blocks = |snapshot: &Snapshot| {
        std::os::unix::fs::MetadataExt::blocks(&fs::metadata(snapshot.memory_path()).unwrap())
    };
    let back = lz4.converted(&["--compress", "none"]);
    assert!(blocks(&back) <= blocks(&raw) + 64, "holes were filled: {} {}", blocks(&back), blocks(&raw));
}

#[test]
fn conversion_keeps_layers_of_disks() {
    needs!(kvm, page_faults);
    let scratch = Scratch::new();
    let (base, layer) = (scratch.fresh("base"), scratch.fresh("layer"));
    fs::write(&base, vec![7; 1 << 20]).unwrap();
    let words = format!("path={},layer={},id=root", base.display(), layer.display());
    let mut guest = Boot::small("disk").device(["--disk".to_owned(), words]).start();
    while guest.next_number("sector") < 70 {}
    let snapshot = guest.snapshot();
    drop(guest);
    let converted = snapshot.converted(&["--compress", "lz4"]);
    assert_eq!(list(converted.directory()), ["disk-root.layer", "memory.pack", "state.json"]);
    let layer_of = |snapshot: &Snapshot| snapshot.directory().join("disk-root.layer");
    assert!(fs::read(layer_of(&converted)).unwrap() == fs::read(layer_of(&snapshot)).unwrap());
    snapshot.remove();
    let mut restored = converted.restore();
    let number = restored.next_number("sector");
    while restored.next_number("sector") < number + 70 {}
    assert!(!restored.output().contains("WRONG"), "{}", restored.output());
    fs::remove_file(layer_of(&converted)).unwrap();
    converted.verify().refused(&["disk-root.layer", "is missing"]);
}

#[test]
fn failed_conversion_leaves_nothing() {
    needs!(kvm);
    let (snapshot, _) = counting(4);
    let scratch = Scratch::new();
    let to = scratch.path("to");
    let lz4 = &["--compress", "lz4"][..];
    snapshot.try_convert(snapshot.directory(), lz4).refused(&["exists already"]);
    snapshot.try_convert(&scratch.path("nowhere/to"), lz4).refused(&["nowhere"]);
    snapshot
        .try_convert(&to, &["--compress", "lz4", "--chunk-size", "5000"])
        .refused(&["chunk_size", "power of two"]);
    snapshot
        .try_convert(&to, &["--compress", "lz4", "--least-saving", "101"])
        .refused(&["least_saving", "0 to 100"]);
    snapshot
        .try_convert(&to, &["--compress", "none", "--chunk-size", "64K"])
        .refused(&["compress", "--chunk-size"]);
    assert_eq!(snapshot.try_convert(&to, &["--compress", "gzip"]).status, 2);
    assert_eq!(snapshot.try_convert(&to, &[]).status, 2);
    let packed = snapshot.converted(lz4);
    flip(&packed, 1000);
    for options in [&["--compress", "none"][..], &["--compress", "zstd"]] {
        packed.try_convert(&to, options).refused(&["memory.pack", "is damaged in chunk"]);
    }
    assert!(scratch.list().is_empty(), "{:?}", scratch.list());
}

/// Flips a bit of a snapshot's memory file.
fn flip(snapshot: &Snapshot, at: u64) {
    flip_file(&snapshot.memory_path(), at);
}

/// Flips a bit of a file.
pub(crate) fn flip_file(path: &Path, at: u64) {
    let file = open_to_change(path);
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn damaged_pack_is_named_and_never_run() {
    needs!(kvm);
    let (snapshot, _) = packed(&["--compress", "lz4"]);
    let path = snapshot.memory_path();
    snapshot.verify().succeeded();
    let len = fs::metadata(&path).unwrap().len();
    for (at, words) in [
        (0, "is damaged in chunk "),
        (len / 8, "is damaged in chunk "),
        (len - FOOTER - TABLE - INDEX, "block 0 of its index"),
        (len - FOOTER - TABLE, "its table"),
        (len - 60, "its footer"),
        (len - 1, "does not end with a pack's footer"),
    ] {
        let bad = snapshot.copy();
        // One flipped bit of a chunk may decode to the same memory. A flipped stretch does not.
        let stretch = if words.contains("chunk") { 64 } else { 1 };
        (at..at + stretch).for_each(|at| flip(&bad, at));
        let file = bad.memory_path();
        let words = [file.to_str().unwrap(), words];
        bad.try_restore_as(&["--unpack"]).refused(&words);
        bad.verify().refused(&words);
    }
    for cut in [0, 1, 63, 64, len / 2, len - 4096, len - 1, len + 1] {
        let bad = snapshot.copy();
        open_to_change(bad.memory_path()).set_len(cut).unwrap();
        bad.try_restore().refused(&["memory.pack", "is cut off or"]);
        bad.try_restore_as(&["--unpack"]).refused(&["memory.pack", "is cut off or"]);
        bad.verify().refused(&["memory.pack", "is cut off or"]);
    }
}

#[test]
fn pack_of_another_state_is_refused() {
    needs!(kvm);
    let (snapshot, _) = packed(&["--compress", "lz4"]);
    let other = Boot::small("count").memory("96M").start();
    other.pause();
    let other = other.snapshot_as(&["--compress", "lz4"]);
    let bad = snapshot.copy();
    overwrite(bad.memory_path(), fs::read(other.memory_path()).unwrap());
    bad.try_restore().refused(&["memory.pack", "100663296", "67108864"]);
    // A snapshot with two memory files is ambiguous.
    let bad = snapshot.copy();
    File::create(bad.directory().join("memory.snap")).unwrap().set_len(64 << 20).unwrap();
    bad.try_restore().refused(&["memory.pack", "memory.snap", "only one"]);
}

#[test]
fn restore_verify_and_convert_refuse_the_content_of_another_pack() {
    needs!(kvm);
    let mut guest = Guest::boot("count mib=8");
    guest.wait_for("count 40");
    let first = guest.snapshot_as(&["--compress", "lz4"]);
    guest.next_number("count");
    let second = guest.snapshot_as(&["--compress", "lz4"]);
    let mixed = first.copy();
    fs::remove_file(mixed.memory_path()).unwrap();
    fs::copy(second.memory_path(), mixed.memory_path().with_extension("pack")).unwrap();
    let words = ["memory.pack", "is a memory.pack with digest ", "names a memory.pack with digest "];
    mixed.try_restore().refused(&words);
    mixed.verify().refused(&words);
    let to = guest.scratch().fresh("to");
    mixed.try_convert(&to, &["--compress", "none"]).refused(&words);
    // Versions before 3 do not name the file, but have a digest of its content.
    mixed.edit(|state| drop(state["metadata"].as_object_mut().unwrap().remove("memory_file")));
    let words = ["memory.pack", "is damaged: the digest of its pages is "];
    mixed.verify().refused(&words);
    mixed.try_convert(&to, &["--compress", "none"]).refused(&words);
    assert!(!to.exists());
}

#[test]
fn verify_notices_flipped_bits_of_stored_chunks() {
    needs!(kvm);
    let (snapshot, _) = packed(&["--compress", "lz4"]);
    let len = fs::metadata(snapshot.memory_path()).unwrap().len();
    for number in 0..40 {
        let bad = snapshot.copy();
        flip(&bad, 1 + number * len / 2 / 40);
        bad.verify().refused(&["memory.pack", "is damaged"]);
    }
}

#[test]
fn conversion_of_damaged_raw_memory_fails_and_leaves_nothing() {
    needs!(kvm);
    let (snapshot, _) = counting(4);
    let bad = snapshot.copy();
    flip(&bad, 17 << 20);
    let scratch = Scratch::new();
    for options in [&["--compress", "none"][..], &["--compress", "lz4"]] {
        let words = ["memory.snap", "is damaged: the digest of its pages is "];
        bad.try_convert(&scratch.path("to"), options).refused(&words);
    }
    assert!(scratch.list().is_empty(), "{:?}", scratch.list());
}

#[test]
fn verify_reports_its_coverage() {
    needs!(kvm);
    let (snapshot, _) = counting(4);
    assert!(snapshot.verify().succeeded().stdout.contains("every checksum is right"));
    let bad = snapshot.copy();
    flip(&bad, 4096 * 300);
    bad.verify().refused(&["memory.snap", "is damaged: the digest of its pages is "]);
    // Old snapshots have no digest.
    bad.edit(|state| drop(state["metadata"].as_object_mut().unwrap().remove("memory_digest")));
    assert!(bad.verify().succeeded().stdout.contains("raw and without a digest"));
    let packed = snapshot.converted(&["--compress", "zstd"]);
    assert!(packed.verify().succeeded().stdout.contains("every checksum is right"));
    let file = fs::read(packed.state_path()).unwrap();
    overwrite(packed.state_path(), &file[..file.len() - 1]);
    packed.verify().refused(&["state.json", "checksum"]);
    Outcome::of(["snapshot", "verify", "/nowhere/x"]).refused(&["/nowhere/x", "no such directory"]);
}

#[test]
fn inspect_describes_memory() {
    needs!(kvm);
    let (raw, _) = counting(8);
    let text = raw.inspect(&[]);
    for words in ["memory.snap", "64 MiB of memory", "data", "hole", "pages of 4 KiB", "..16384"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let packed = raw.converted(&["--compress", "lz4"]);
    let text = packed.inspect(&["--summarized"]);
    for words in ["memory.pack", "chunks of 64 KiB", "digest", "zero", "lz4", "ratio"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains("pages of 4 KiB"), "{text}");
    let found: serde_json::Value = serde_json::from_str(&packed.inspect(&["--json"])).unwrap();
    let kinds = found["kinds"].as_object().unwrap();
    let sum = |field: &str| kinds.values().map(|kind| kind[field].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("count"), sum("memory_bytes")), (1024, 64 << 20));
    let file = fs::metadata(packed.memory_path()).unwrap().len();
    assert!(sum("stored_bytes") < file && file < sum("stored_bytes") + 32_768, "{found}");
    let pages = found["pages"].as_array().unwrap();
    assert_eq!(
        (&pages[0]["pages"]["start"], &pages[pages.len() - 1]["pages"]["end"]),
        (&0.into(), &16_384.into())
    );
    flip(&packed, file - FOOTER - TABLE - INDEX);
    Outcome::of(["snapshot", "inspect", packed.directory().to_str().unwrap()])
        .refused(&["block 0 of its index"]);
}

#[test]
fn bad_packing_options_do_not_affect_the_guest() {
    needs!(kvm);
    let mut guest = Guest::boot("count");
    guest.wait_for("count");
    let place = guest.scratch().path("place");
    let before = guest.scratch().list();
    guest
        .try_snapshot_as(&place, &["--compress", "lz4", "--chunk-size", "3K"])
        .refused(&["chunk_size", "3072"]);
    guest
        .try_snapshot_as(&place, &["--compress", "zstd", "--least-saving", "200"])
        .refused(&["least_saving", "200"]);
    assert_eq!(guest.try_snapshot_as(&place, &["--compress", "zstd:99"]).status, 2);
    let request =
        format!(r#"{{"snapshot_path":{place:?},"compress":"lz4","chunk_size":4096,"least_saving":10}}"#);
    assert_eq!(guest.scratch().list(), before);
    assert_eq!(guest.ask("PUT", "/snapshot/create", &request), (204, String::new()));
    assert_eq!(list(&place), ["memory.pack", "state.json"]);
    guest.next_number("count");
}
