//! `volt-vmm snapshot bench`: the times of a recording under each strategy.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use volt_tests::damage::open_to_change;
use volt_tests::scratch::list;
use volt_tests::{Guest, Outcome, Scratch, Snapshot, needs};
use volt_vmm::WorkingSet;

use crate::snapshot::restoring::counting;

const MEMORY: u64 = 64 << 20;
const PAGES: u64 = 300;
const RAW: [&str; 4] = [
    "mapped, page cache warm",
    "mapped, populated ahead",
    "mapped, page cache dropped",
    "read whole into memory",
];
const PACKED: [&str; 5] = [
    "on touch",
    "on touch, filled ahead",
    "on touch, of a second VM",
    "floor of on touch",
    "unpacked at once, mapped",
];

/// Keeps a recording of a snapshot in a directory. Its pages run forth and back, and some are empty.
pub fn record(snapshot: &Snapshot, directory: &Path) {
    let forth = (0..PAGES / 2).map(|page| page * 7 * 4096);
    let back = (0..PAGES / 2).map(|page| MEMORY - 4096 - page * 4096);
    let set = WorkingSet::of(MEMORY, forth.chain(back));
    assert_eq!(set.pages(), PAGES);
    set.keep(directory, id_of(snapshot).as_str(), MEMORY).unwrap();
}

fn id_of(snapshot: &Snapshot) -> String {
    snapshot.state()["metadata"]["id"].as_str().unwrap().to_owned()
}

fn bench(snapshot: &Snapshot, options: &[&str]) -> Outcome {
    let words = ["snapshot", "bench", snapshot.directory().to_str().unwrap()];
    Outcome::of(words.into_iter().chain(options.iter().copied()))
}

/// Checks the JSON and the table: these strategies, each with a touch per page and round.
fn measures(snapshot: &Snapshot, strategies: &[&str]) {
    let found: Value =
        serde_json::from_str(&bench(snapshot, &["--json", "--rounds", "2"]).succeeded().stdout).unwrap();
    assert_eq!((&found["pages"], &found["rounds"]), (&PAGES.into(), &2.into()), "{found}");
    let rows = found["strategies"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["strategy"].as_str().unwrap()).collect();
    assert_eq!(names, strategies);
    for row in rows {
        let of = |field: &str| row[field].as_u64().unwrap();
        assert_eq!(of("touches"), 2 * PAGES, "{row}");
        let order = ["min_ns", "p50_ns", "p99_ns", "max_ns", "total_ns"].map(of);
        assert!(order.is_sorted() && order[4] > 0, "{row}");
        assert!((order[0]..=order[3]).contains(&of("average_ns")) && of("before_ns") > 0, "{row}");
        assert!(row["mib_per_s"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["stayed_cached"].is_null(), row["strategy"] != "mapped, page cache dropped", "{row}");
    }
    let text = bench(snapshot, &["--rounds", "1"]).succeeded().stdout.clone();
    for column in
        ["touches", "total ms", "average us", "min us", "p50 us", "p99 us", "max us", "MiB/s", "before"]
    {
        assert!(text.contains(column), "{column}: {text}");
    }
    for name in strategies {
        let row = text.lines().find(|line| line.starts_with(&format!("{name}  "))).expect(name);
        assert_eq!(row[28..].split_whitespace().next(), Some(PAGES.to_string().as_str()), "{text}");
    }
}

#[test]
fn bench_measures_each_strategy_for_its_kind_of_memory() {
    needs!(kvm, page_faults);
    let (raw, _) = counting(8);
    let packed = raw.converted(&["--compress", "lz4"]);
    for (snapshot, strategies, name) in [(&raw, &RAW[..], "memory.snap"), (&packed, &PACKED, "memory.pack")] {
        let untouched = snapshot.fingerprint();
        record(snapshot, snapshot.directory());
        measures(snapshot, strategies);
        assert_eq!(list(snapshot.directory()), [name, "state.json", "working-set"]);
        assert_eq!(snapshot.fingerprint(), untouched);
    }
}

#[test]
fn bench_of_a_diff_touches_pages_over_its_base() {
    needs!(kvm, page_faults);
    let mut guest = Guest::boot("count mib=8");
    guest.wait_for("count 40");
    for (options, strategies, name) in
        [(&["--compress", "lz4"][..], &PACKED[..], "memory.pack"), (&[], &RAW, "memory.snap")]
    {
        let base = guest.snapshot_as(options);
        let number = guest.next_number("count");
        while guest.next_number("count") < number + 10 {}
        let diff = guest.snapshot_as(&["--diff"]);
        record(&diff, diff.directory());
        measures(&diff, strategies);
        let found = bench(&diff, &["--json", "--rounds", "1"]).succeeded().stdout.clone();
        let found: Value = serde_json::from_str(&found).unwrap();
        let files: Vec<_> = found["memory_files"]
            .as_array()
            .unwrap()
            .iter()
            .map(|file| PathBuf::from(file.as_str().unwrap()))
            .collect();
        assert_eq!(files, [diff.diff_path(), base.directory().join(name)]);
    }
}

#[test]
fn recording_of_another_snapshot_is_refused_by_name() {
    needs!(kvm);
    let ((raw, _), (other, _), scratch) = (counting(4), counting(4), Scratch::new());
    bench(&raw, &[]).refused(&[raw.directory().join("working-set").to_str().unwrap(), "is missing"]);
    record(&other, scratch.directory());
    let path = scratch.path("working-set");
    let recording = path.to_str().unwrap();
    bench(&raw, &[recording]).refused(&[recording, "of another snapshot", &id_of(&raw), &id_of(&other)]);
    assert!(bench(&other, &[recording, "--rounds", "1"]).succeeded().stdout.contains(recording));
    WorkingSet::of(MEMORY, []).keep(scratch.directory(), &id_of(&raw), MEMORY).unwrap();
    bench(&raw, &[recording]).refused(&[recording, "names no page"]);
    fs::remove_file(&path).unwrap();
    fs::write(&path, "VOLTWSET and then something else, and more of it").unwrap();
    bench(&raw, &[recording]).refused(&[recording, "is damaged"]);
    bench(&raw, &[scratch.directory().to_str().unwrap()]).refused(&["is not a regular file"]);
    bench(&raw, &["/dev/zero"]).refused(&["/dev/zero", "is not a regular file"]);
    bench(&raw, &["/nowhere/x"]).refused(&["/nowhere", "no such directory"]);
    for rounds in ["0", "x", "1001"] {
        assert_eq!(bench(&raw, &["--rounds", rounds]).status, 2, "{rounds}");
    }
}

#[test]
fn bench_of_damaged_memory_fails_without_a_crash() {
    needs!(kvm);
    let (raw, _) = counting(8);
    let packed = raw.converted(&["--compress", "lz4"]);
    record(&packed, packed.directory());
    crate::snapshot::packed::flip_file(&packed.memory_path(), 1000);
    bench(&packed, &[]).refused(&["memory.pack", "is damaged in chunk"]);
    record(&raw, raw.directory());
    open_to_change(raw.memory_path()).set_len(MEMORY / 2).unwrap();
    bench(&raw, &[]).refused(&["memory.snap", "bytes long, but its state says"]);
}
