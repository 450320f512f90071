//! Starts of VMs under faults: restores, also through a pager, and disks with layers. The guest runs right,
//! or the VM ends with an error.

use std::cell::RefCell;
use std::path::PathBuf;

use rustix::process::Pid;
use volt_tests::faults::{Case, Injector, Sample, Side, wait_for_end};
use volt_tests::injected::children_of;
use volt_tests::{Boot, Guest, Outcome, Scratch, Snapshot, needs, numbers, processes_with, wait_until};

use crate::left::ended_well;

/// How a guest went on.
enum Course {
    /// It reached its goal and still runs.
    Runs,
    /// Its VM ended.
    Ended(Outcome),
}

/// Waits until the guest has said `name N` for the `more`th time, or has ended.
fn course(guest: &mut Guest, name: &str, more: usize) -> Course {
    let mut runs = true;
    wait_until("the guest goes on or ends", || {
        runs = guest.is_running();
        !runs || numbers(&guest.output(), name).len() >= more
    });
    if runs { Course::Runs } else { Course::Ended(guest.wait_exit()) }
}

/// Restores a snapshot of a counting guest with each fault.
fn each_restore(name: &str, side: Side, snapshot: &Snapshot, options: &dyn Fn() -> Vec<String>) {
    let injector = Injector::of(side);
    let act = || {
        let options = options();
        let options: Vec<_> = options.iter().map(String::as_str).collect();
        let mut guest = snapshot.restore_with_faults(&injector, &options);
        let course = course(&mut guest, "count", 9);
        (guest, course)
    };
    let ((guest, course), calls) = injector.record(act);
    assert!(matches!(course, Course::Runs), "without a fault: {}", guest.stderr());
    drop(guest);
    for case in Sample::of(name, &calls, side == Side::Writes) {
        let ((guest, course), hit) = injector.inject(&case, act);
        let (output, messages) = (guest.output(), guest.messages());
        assert!(!output.contains("WRONG"), "{case}: {output}\n{messages}");
        assert!(!messages.contains("panicked"), "{case}: {messages}");
        match course {
            Course::Runs => {
                shown(&case, &messages);
                let mut beside = children_of(guest.pid());
                // A pager outlives its VMs.
                beside.retain(|(name, _)| ["volt-opener", "volt-starter"].contains(&name.as_str()));
                guest.kill();
                beside.into_iter().filter_map(|(_, pid)| Pid::from_raw(pid)).for_each(wait_for_end);
            }
            Course::Ended(outcome) => ended_well(&case, hit.as_ref(), &outcome),
        }
    }
}

fn shown(case: &Case, messages: &str) {
    if std::env::var_os("VOLT_FAULTS_SHOWN").is_some() {
        println!("{case}: runs {}", messages.trim_end());
    }
}

/// A guest that has written its memory, and options of its snapshot.
fn counted(options: &[&str]) -> Snapshot {
    let mut guest = Guest::boot("count mib=1");
    guest.wait_for("count 9\n");
    guest.snapshot_as(options)
}

const PACKED: [&str; 4] = ["--compress", "lz4", "--chunk-size", "16K"];

fn restore(side: Side) {
    let snapshot = counted(&[]);
    each_restore("restore", side, &snapshot, &Vec::new);
}

fn lazy_restore(side: Side) {
    let snapshot = counted(&PACKED);
    each_restore("lazy restore", side, &snapshot, &Vec::new);
}

/// Each restore starts a pager of its own, which has the faults too.
fn paged_restore(side: Side) {
    let (snapshot, scratch) = (counted(&PACKED), Scratch::new());
    let directories = RefCell::new(Vec::new());
    let options = || {
        let directory = scratch.fresh("pagers");
        directories.borrow_mut().push(directory.clone());
        ["--pager", "shared", "--pager-dir", directory.to_str().unwrap()].map(str::to_owned).to_vec()
    };
    each_restore("restore with a pager", side, &snapshot, &options);
    for directory in directories.into_inner() {
        wait_until("the pagers of VMs that have ended end", || processes_with(&directory).is_empty());
    }
}

// ---- Layers ----

const SLOTS: u64 = 8;
/// Sectors between two slots: more than a cluster.
const FAR: u64 = 136;

/// Makes an image with record 0 in each slot.
fn image(scratch: &Scratch) -> PathBuf {
    let path = scratch.fresh("base");
    let words = 0..(SLOTS + 1) * FAR * 64;
    std::fs::write(&path, words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>()).unwrap();
    path
}

/// Lets a guest write to a new layer with each fault. It may get I/O errors. The layer then has each synced
/// record, once the fault is over.
fn layer(side: Side, engine: &str) {
    let (injector, scratch) = (Injector::of(side), Scratch::new());
    let base = image(&scratch);
    let with = |layer: &str, words: &str| {
        let disk = format!("path={},layer={layer},engine={engine}", base.display());
        let boot = Boot::small(&format!("records {words} slots={SLOTS} stride={FAR}"));
        boot.device(["--disk".to_owned(), disk])
    };
    let act = || {
        let layer = scratch.fresh("layer").display().to_string();
        let mut guest = with(&layer, "verify=1").faults(&injector).start();
        let course = course(&mut guest, "synced", 4);
        (layer, guest, course)
    };
    let ((_, guest, course), calls) = injector.record(act);
    assert!(matches!(course, Course::Runs), "without a fault: {}", guest.stderr());
    drop(guest);
    for case in Sample::of(&format!("layer by {engine}"), &calls, side == Side::Writes) {
        let ((layer, guest, course), hit) = injector.inject(&case, act);
        let output = match course {
            Course::Runs => {
                shown(&case, &guest.messages());
                guest.kill()
            }
            Course::Ended(outcome) => {
                // The guest powers off after an I/O error.
                ended_well(&case, hit.as_ref(), &outcome);
                outcome.stdout
            }
        };
        assert!(!output.contains("WRONG record"), "{case}: {output}");
        let Some(synced) = numbers(&output, "synced").last().copied() else { continue };
        let checked = with(&layer, "check=1").outcome();
        checked.succeeded();
        has_kept(&case, &numbers(&checked.stdout, "record"), synced);
    }
}

/// Checks that each slot holds the last record that was synced, or a later one.
fn has_kept(case: &Case, found: &[u64], synced: u64) {
    assert_eq!(found.len() as u64, SLOTS, "{case}");
    for (slot, &found) in (0_u64..).zip(found) {
        let of_slot = |record: &u64| record * 7 % SLOTS == slot;
        let last = (1..=synced).rev().find(of_slot).unwrap_or(0);
        assert!(
            (found == 0 || of_slot(&found)) && found >= last,
            "{case}: slot {slot}: {found}, synced {last}"
        );
    }
}

#[test]
fn restored_guest_runs_right_or_ends_after_a_failed_write() {
    needs!(kvm);
    restore(Side::Writes);
}

#[test]
fn restored_guest_runs_right_or_ends_after_a_failed_read() {
    needs!(kvm);
    restore(Side::Reads);
}

#[test]
fn lazily_restored_guest_runs_right_or_ends_after_a_failed_write() {
    needs!(kvm, page_faults);
    lazy_restore(Side::Writes);
}

#[test]
fn lazily_restored_guest_runs_right_or_ends_after_a_failed_read() {
    needs!(kvm, page_faults);
    lazy_restore(Side::Reads);
}

#[test]
fn guest_of_a_pager_runs_right_or_ends_after_a_failed_write() {
    needs!(kvm, page_faults);
    paged_restore(Side::Writes);
}

#[test]
fn guest_of_a_pager_runs_right_or_ends_after_a_failed_read() {
    needs!(kvm, page_faults);
    paged_restore(Side::Reads);
}

#[test]
fn layer_keeps_synced_records_after_a_failed_write() {
    needs!(kvm);
    layer(Side::Writes, "sync");
}

#[test]
fn layer_keeps_synced_records_after_a_failed_read() {
    needs!(kvm);
    layer(Side::Reads, "sync");
}

#[test]
fn layer_by_io_uring_keeps_synced_records_after_a_failed_write() {
    needs!(kvm);
    layer(Side::Writes, "io_uring");
}
