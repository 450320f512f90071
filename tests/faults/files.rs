//! Acts on the files of snapshots, each in a process of its own: conversions and merges.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use volt_tests::faults::{Injector, Sample, Side};
use volt_tests::program::binary;
use volt_tests::{Guest, Outcome, Snapshot, needs};

use crate::left::Store;

/// A base, and a diff to it.
struct Snapshots {
    base: Snapshot,
    diff: Snapshot,
    _guest: Guest,
}

impl Snapshots {
    fn new() -> Self {
        let mut guest = Guest::boot("count mib=1");
        guest.wait_for("count 5\n");
        let base = guest.snapshot();
        guest.next_number("count");
        guest.pause();
        let diff = guest.snapshot_as(&["--diff"]);
        Self { base, diff, _guest: guest }
    }
}

/// Repeats `volt-vmm snapshot WORDS FROM TO OPTIONS` with each fault. `right` is what it should make.
fn each(name: &str, side: Side, words: &str, from: &Snapshot, options: &[&str], right: impl Fn(&Snapshot)) {
    let store = Store::new(&volt_tests::Scratch::new());
    let injector = Injector::of(side);
    let command = |to: &Path| {
        let mut command = Command::new(binary());
        let arguments: [OsString; 4] =
            ["snapshot".into(), words.into(), from.directory().into(), to.as_os_str().into()];
        command.args(arguments).args(options);
        command
    };
    let watched = || {
        let mut command = command(&store.place());
        injector.apply(&mut command);
        Outcome::of_command(&mut command)
    };
    let (outcome, calls) = injector.record(watched);
    outcome.succeeded();
    right(&store.made().expect("it succeeded"));
    store.clear("without a fault");
    for case in Sample::of(name, &calls, side == Side::Writes) {
        let (outcome, hit) = injector.inject(&case, watched);
        let again = || Outcome::of_command(&mut command(&store.place()));
        store.check(&case, hit.as_ref(), &outcome, again, &right);
    }
}

/// Checks that a packed snapshot has the memory of `raw`.
fn unpacks_to(packed: &Snapshot, raw: &Snapshot) {
    packed.verify().succeeded();
    same_memory(&packed.converted(&["--compress", "none"]), raw);
}

fn same_memory(one: &Snapshot, other: &Snapshot) {
    let [(len, .., sum), (right_len, .., right_sum)] = [one, other].map(|at| at.fingerprint()[1]);
    assert_eq!((len, sum), (right_len, right_sum), "the memory differs");
}

fn pack(side: Side) {
    let base = Snapshots::new().base;
    let options = ["--compress", "lz4", "--chunk-size", "16K"];
    each("pack", side, "convert", &base, &options, |made| unpacks_to(made, &base));
}

fn unpack(side: Side) {
    let base = Snapshots::new().base;
    let packed = base.converted(&["--compress", "lz4"]);
    each("unpack", side, "convert", &packed, &["--compress", "none"], |made| same_memory(made, &base));
}

fn merge(side: Side) {
    let snapshots = Snapshots::new();
    let right = snapshots.diff.merged();
    each("merge", side, "merge", &snapshots.diff, &[], |made| same_memory(made, &right));
}

#[test]
fn pack_is_whole_or_absent_after_a_failed_write() {
    needs!(kvm);
    pack(Side::Writes);
}

#[test]
fn pack_is_whole_or_absent_after_a_failed_read() {
    needs!(kvm);
    pack(Side::Reads);
}

#[test]
fn unpacked_snapshot_is_whole_or_absent_after_a_failed_write() {
    needs!(kvm);
    unpack(Side::Writes);
}

#[test]
fn unpacked_snapshot_is_whole_or_absent_after_a_failed_read() {
    needs!(kvm);
    unpack(Side::Reads);
}

#[test]
fn merge_is_whole_or_absent_after_a_failed_write() {
    needs!(kvm);
    merge(Side::Writes);
}

#[test]
fn merge_is_whole_or_absent_after_a_failed_read() {
    needs!(kvm);
    merge(Side::Reads);
}
