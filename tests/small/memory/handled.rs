//! VMs whose memory a handler fills: restores, snapshots, forks, rewinds and balloons.

use std::fs;
use std::path::Path;

use serde_json::json;
use volt_tests::{Boot, Child, Guest, MemoryHandler, Snapshot, need, needs, without_generation};

use crate::snapshot::diffs::{counting, goes_on};
use crate::snapshot::two_files::{Pair, merge};

const PAGE: usize = 4096;

fn taken(guest: &Guest) -> Pair {
    let pair = Pair::fresh(guest.scratch());
    pair.take(guest, "Full");
    pair
}

/// Takes a snapshot of a guest that counts over 8 MiB, and starts a handler for it.
fn counted() -> (Pair, MemoryHandler) {
    let pair = taken(&counting(8));
    let handler = MemoryHandler::serving(&pair.memory, &pair.scratch);
    (pair, handler)
}

/// Takes a snapshot of a guest with a balloon, which has written 12 MiB.
fn ballooned() -> Pair {
    let mut guest = Boot::small("balloon mib=12").device(["--balloon"]).start();
    guest.wait_for("ready");
    taken(&guest)
}

fn memory_of(snapshot: &Snapshot) -> Vec<u8> {
    without_generation(fs::read(snapshot.memory_path()).unwrap())
}

#[test]
fn handler_gets_the_mappings_and_fills_touched_pages() {
    needs!(kvm, page_faults);
    let (pair, handler) = counted();
    let mut guest = handler.restore(&pair.state, &json!({}));
    goes_on(&mut guest, 8);
    let mappings = handler.mappings();
    let [mapping] = &mappings.as_array().unwrap()[..] else { panic!("{mappings}") };
    assert!(mapping["base_host_virt_addr"].as_u64().unwrap().is_multiple_of(PAGE as u64));
    assert_eq!((&mapping["size"], &mapping["offset"]), (&json!(64 << 20), &json!(0)));
    assert_eq!((&mapping["page_size"], &mapping["page_size_kib"]), (&json!(PAGE), &json!(PAGE)));
    // Each page is asked for once: 8 MiB, and what else the guest uses.
    let pages = handler.count("page");
    assert!((8 << 8..10 << 8).contains(&pages), "{pages} pages");
    let (status, usage) = guest.ask("GET", "/v1/vm/memory", "");
    assert!(status == 200 && usage.contains(r#""base_bytes":0"#), "{status} {usage}");
}

#[test]
fn memory_above_4_gib_is_filled_from_its_offset() {
    needs!(kvm, page_faults);
    let mut guest = Boot::small("count mib=8").memory("3200M").start();
    guest.wait_for("count");
    let pair = Pair::fresh(guest.scratch());
    pair.take(&guest, "Full");
    drop(guest);
    let handler = MemoryHandler::serving(&pair.memory, &pair.scratch);
    let mut guest = handler.restore(&pair.state, &json!({}));
    goes_on(&mut guest, 8);
    assert_eq!(handler.mappings().as_array().unwrap().len(), 2);
}

#[test]
fn untouched_memory_is_in_a_full_snapshot() {
    needs!(kvm, page_faults);
    let (pair, handler) = counted();
    let guest = handler.restore(&pair.state, &json!({"resume_vm": false}));
    let (whole, directory) = (Pair::fresh(&pair.scratch), guest.snapshot());
    whole.take(&guest, "Full");
    assert!(pair.bytes() == whole.bytes() && pair.bytes() == memory_of(&directory));
    // Pages of zeros stay holes, though the handler filled them.
    use std::os::unix::fs::MetadataExt;
    let blocks = fs::metadata(&whole.memory).unwrap().blocks() * 512;
    assert!(blocks < 12 << 20, "{blocks} bytes");
    drop((guest, handler));
    directory.verify().succeeded();
    goes_on(&mut directory.restore(), 8);
    goes_on(&mut whole.load(), 8);
}

#[test]
fn snapshots_of_a_running_guest_and_diffs_over_them_restore() {
    needs!(kvm, page_faults);
    let (pair, handler) = counted();
    let mut guest = handler.restore(&pair.state, &json!({}));
    let base = guest.snapshot();
    goes_on(&mut guest, 8);
    guest.pause();
    let (diff, full) = (guest.snapshot_as(&["--diff"]), guest.snapshot());
    guest.resume();
    goes_on(&mut guest, 8);
    assert!(memory_of(&diff.merged()) == memory_of(&full));
    for snapshot in [&base, &diff, &full] {
        goes_on(&mut snapshot.restore(), 8);
    }
}

/// Checks that a diff of the VM over the memory that the handler has is the VM's memory. Returns the number
/// of the diff's pages.
fn merged_diff_is_whole(guest: &Guest, origin: &Path, pair: &Pair) -> u64 {
    let [diff, merged] = [(); 2].map(|()| Pair::fresh(&pair.scratch));
    fs::copy(origin, &merged.memory).unwrap();
    guest.pause();
    diff.take(guest, "Diff");
    let full = guest.snapshot();
    let bytes = merge(&diff.memory, &merged.memory);
    assert!(merged.bytes() == memory_of(&full));
    bytes / PAGE as u64
}

#[test]
fn first_diff_is_relative_to_the_handlers_memory() {
    needs!(kvm, page_faults);
    for tracked in [true, false] {
        let (pair, handler) = counted();
        let mut guest = handler.restore(&pair.state, &json!({"track_dirty_pages": tracked}));
        goes_on(&mut guest, 8);
        let pages = merged_diff_is_whole(&guest, &pair.memory, &pair);
        assert!((8 << 8..10 << 8).contains(&pages), "{pages} pages");
    }
}

#[test]
fn tracked_diff_has_a_page_that_was_only_fetched_where_kvm_counts_its_read() {
    needs!(kvm, page_faults);
    let pair = ballooned();
    // With the processor's nested paging, KVM maps a fetched page as writable at its first read, and counts
    // it as written (make_spte in arch/x86/kvm/mmu/spte.c).
    let fetched = (12 << 8, 14 << 8);
    let written = if need::shadow_paging().is_none() { (0, 256) } else { fetched };
    for (tracked, (least, most)) in [(true, written), (false, fetched)] {
        let handler = MemoryHandler::serving(&pair.memory, &pair.scratch);
        let mut guest = handler.restore(&pair.state, &json!({"track_dirty_pages": tracked}));
        guest.type_in("c");
        assert_eq!(guest.next_number("checked"), 12 << 8);
        let pages = merged_diff_is_whole(&guest, &pair.memory, &pair);
        assert!((least..most).contains(&pages), "{pages} pages, {tracked}");
    }
}

#[test]
fn page_that_the_guest_zeroed_is_data_in_the_first_diff() {
    needs!(kvm, page_faults);
    let mut guest = Boot::small("erase mib=4").start();
    guest.wait_for("ready");
    let pair = Pair::fresh(guest.scratch());
    pair.take(&guest, "Full");
    drop(guest);
    for tracked in [true, false] {
        let handler = MemoryHandler::serving(&pair.memory, &pair.scratch);
        let mut guest = handler.restore(&pair.state, &json!({"track_dirty_pages": tracked}));
        guest.type_in("x").wait_for("erased");
        let pages = merged_diff_is_whole(&guest, &pair.memory, &pair);
        assert!((4 << 8..6 << 8).contains(&pages), "{pages} pages");
    }
}

/// Waits until a child's number of this name has grown by so much since its first line.
fn advances(child: &Child, name: &str, by: u64) {
    child.reaches(name, 1);
    let first = volt_tests::numbers(&child.output(), name)[0];
    child.reaches(name, first + by);
}

#[test]
fn forks_have_memory_that_their_parent_did_not_touch() {
    needs!(kvm, page_faults);
    let (pair, handler) = counted();
    let guest = handler.restore(&pair.state, &json!({"resume_vm": false}));
    let scratch = guest.scratch().clone();
    let names = [("a", json!({})), ("b", json!({}))];
    let children = Child::fork(guest.socket(), scratch.directory(), &names, false);
    drop((guest, handler));
    for child in &children {
        child.reaches("count", 40);
        advances(child, "count", 64);
        assert!(!child.output().contains("WRONG"), "{}", child.output());
    }
}

#[test]
fn rewound_guest_has_its_first_memory() {
    needs!(kvm, page_faults);
    for tracked in [true, false] {
        let (pair, handler) = counted();
        let mut guest = handler.restore(&pair.state, &json!({"track_dirty_pages": tracked}));
        for _ in 0..3 {
            goes_on(&mut guest, 8);
            // A line that the rewind cuts would go on with one of the snapshot's instant.
            let _ = guest.paused_in_whole_lines();
            let (status, answer) = guest.ask("PUT", "/v1/vm/rewind", "");
            assert_eq!(status, 200, "{answer}");
            let rewound = guest.snapshot();
            assert!(memory_of(&rewound) == pair.bytes());
            guest.resume();
        }
        assert_eq!(handler.count("removed"), 0, "the handler is not told of dropped pages");
        let maps = fs::read_to_string(format!("/proc/{}/maps", guest.pid())).unwrap();
        let of_memory = maps.lines().filter(|line| line.contains("volt-ram")).count();
        assert!(of_memory < 16, "mappings merge again:\n{maps}");
        goes_on(&mut guest, 8);
    }
}

#[test]
fn child_that_reads_zeros_leaves_its_rewound_parent_whole() {
    needs!(kvm, page_faults);
    let mut guest = Boot::small("erase mib=4 again=1").start();
    guest.wait_for("ready");
    let pair = taken(&guest);
    drop(guest);
    let handler = MemoryHandler::serving(&pair.memory, &pair.scratch);
    let mut guest = handler.restore(&pair.state, &json!({}));
    guest.type_in("x").wait_for("erased");
    let scratch = guest.scratch().clone();
    let children = Child::fork(guest.socket(), scratch.directory(), &[("a", json!({}))], false);
    advances(&children[0], "read", 2);
    drop(children);
    let _ = guest.paused_in_whole_lines();
    let (status, answer) = guest.ask("PUT", "/v1/vm/rewind", "");
    assert_eq!(status, 200, "{answer}");
    assert!(memory_of(&guest.snapshot()) == pair.bytes());
}

#[test]
fn page_from_the_balloon_is_zero_and_the_vm_is_not_rewound() {
    needs!(kvm, page_faults);
    let pair = ballooned();
    let handler = MemoryHandler::serving(&pair.memory, &pair.scratch);
    let mut guest = handler.restore(&pair.state, &json!({}));
    let ask_for = |guest: &mut Guest, mib: u64| {
        let change = format!(r#"{{"amount_mib":{mib}}}"#);
        assert_eq!(guest.ask("PATCH", "/balloon", &change), (204, String::new()));
        let found = (guest.next_number("empty"), guest.next_number("first"));
        assert_eq!(guest.next_number("balloon"), mib << 8);
        found
    };
    assert_eq!(ask_for(&mut guest, 8), (0, 0));
    assert!(handler.count("removed") > 0);
    // A snapshot fetches none of the balloon's pages.
    let snapshot = guest.snapshot();
    assert_eq!(handler.count("zero"), 0);
    assert_eq!(ask_for(&mut guest, 0), (8 << 8, 0));
    assert_eq!(handler.count("zero"), 8 << 8);
    guest.type_in("c");
    assert_eq!(guest.next_number("checked"), 12 << 8);
    let (status, answer) = guest.ask("PUT", "/v1/vm/rewind", "");
    assert!(status == 400 && answer.contains("2048 pages to the host"), "{status} {answer}");
    guest.type_in("c");
    assert_eq!(guest.next_number("checked"), 12 << 8);
    drop((guest, handler));
    let mut clone = snapshot.restore();
    assert_eq!(ask_for(&mut clone, 0), (8 << 8, 0));
}

#[test]
fn command_line_restores_by_a_handler_also_when_confined() {
    needs!(kvm, page_faults);
    for confine in ["default", "strict", "off"] {
        let (pair, handler) = counted();
        let options = ["--memory-handler", handler.socket().to_str().unwrap(), "--confine", confine];
        let mut guest = Snapshot::at(pair.state.clone(), &pair.scratch).restore_as(&options);
        goes_on(&mut guest, 8);
        guest.pause();
        guest.resume();
        goes_on(&mut guest, 8);
        drop(guest);
    }
}
