//! Guest memory in huge pages.

use std::fs;
use std::os::unix::fs::MetadataExt;

use serde_json::{Value, json};
use volt_tests::patience::in_lab;
use volt_tests::{Boot, Child, Guest, MemoryHandler, Snapshot, needs, numbers, without_generation};

use crate::snapshot::diffs::goes_on;
use crate::snapshot::two_files::{Pair, merge};

/// Boots a guest that counts over 8 MiB of memory in pages of the host's pool.
fn counting() -> Guest {
    let mut guest = Boot::small("count mib=8").device(["--huge-pages", "2M"]).start();
    guest.wait_for("count");
    guest
}

fn memory_of(snapshot: &Snapshot) -> Vec<u8> {
    without_generation(fs::read(snapshot.memory_path()).unwrap())
}

/// The KiB of huge pages that a guest's process maps.
fn huge_kib(guest: &Guest) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", guest.pid())).unwrap();
    let lines = rollup.lines().filter_map(|line| line.split_once(':'));
    let of_hugetlb = lines.filter(|(name, _)| name.ends_with("_Hugetlb"));
    of_hugetlb.map(|(_, size)| size.trim().trim_end_matches(" kB").parse::<u64>().unwrap()).sum()
}

/// Whether memory of a guest's process asks for transparent huge pages.
fn has_advice(guest: &Guest) -> bool {
    let maps = fs::read_to_string(format!("/proc/{}/smaps", guest.pid())).unwrap();
    maps.lines().any(|line| line.starts_with("VmFlags:") && line.contains(" hg"))
}

#[test]
fn guest_that_needs_more_huge_pages_than_the_host_has_is_refused() {
    needs!(kvm);
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let free = meminfo.lines().find_map(|line| line.strip_prefix("HugePages_Free:")).unwrap();
    let mib = 2 * free.trim().parse::<u64>().unwrap() + 256;
    let boot = Boot::small("count").memory(&format!("{mib}M")).device(["--huge-pages", "2M"]);
    boot.outcome().refused(&["/proc/sys/vm/nr_hugepages"]);
    let odd = Boot::small("count").memory("63M").device(["--huge-pages", "transparent"]);
    odd.outcome().refused(&["memory: 63 MiB is not a multiple of 2 MiB"]);
}

#[test]
fn transparent_pages_are_asked_for_in_a_restored_vm_too() {
    needs!(kvm);
    for (pages, is_asked_for) in [("transparent", true), ("none", false)] {
        let mut guest = Boot::small("count mib=4").device(["--huge-pages", pages]).start();
        guest.wait_for("count");
        assert!(has_advice(&guest), "fresh memory");
        let snapshot = guest.snapshot();
        let mut clone = snapshot.restore();
        goes_on(&mut clone, 4);
        assert_eq!(has_advice(&clone), is_asked_for, "{pages}");
        let (_, told) = clone.ask("GET", "/machine-config", "");
        assert_eq!(told.contains(r#""huge_pages":"Transparent""#), is_asked_for, "{told}");
    }
}

/// Whether anonymous memory of a guest's process asks for transparent huge pages.
fn has_anonymous_advice(guest: &Guest) -> bool {
    let maps = fs::read_to_string(format!("/proc/{}/smaps", guest.pid())).unwrap();
    let mut is_anonymous = false;
    maps.lines().any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        // A mapping's first line has its inode. Other lines have their names first.
        if words[0].contains('-') {
            is_anonymous = words[4] == "0";
        }
        is_anonymous && words[0] == "VmFlags:" && words.contains(&"hg")
    })
}

#[test]
fn memory_that_a_guest_allocates_in_holes_survives_diffs_forks_and_rewinds() {
    needs!(kvm);
    let mut guest = Boot::small("count mib=8 wait=1").device(["--huge-pages", "transparent"]).start();
    guest.wait_for("waits");
    let base = guest.snapshot();
    drop(guest);
    let blocks = |snapshot: &Snapshot| fs::metadata(snapshot.memory_path()).unwrap().blocks() * 512;
    assert!(blocks(&base) < 4 << 20, "{} bytes", blocks(&base));
    let mut clone = base.restore();
    clone.type_in("x");
    goes_on(&mut clone, 8);
    assert!(has_anonymous_advice(&clone));
    clone.pause();
    let (diff, full) = (clone.snapshot_as(&["--diff"]), clone.snapshot());
    clone.resume();
    assert!(memory_of(&diff.merged()) == memory_of(&full));
    // Zeros of a huge page stay holes.
    assert!((8 << 20..12 << 20).contains(&blocks(&full)), "{} bytes", blocks(&full));
    for snapshot in [&diff, &full] {
        goes_on(&mut snapshot.restore(), 8);
    }
    forks_go_on(&clone);
    goes_on(&mut clone, 8);
    let (status, told) = clone.ask("PUT", "/v1/vm/rewind", "");
    assert_eq!(status, 200, "{told}");
    clone.type_in("x").wait_for("ready\n").wait_for("count 64\n");
    assert!(!clone.output().contains("WRONG"), "{}", clone.output());
}

/// Forks a guest that counts over 8 MiB. Checks that each child finds its memory whole, and writes all of it.
fn forks_go_on(guest: &Guest) {
    let children = [("a", json!({})), ("b", json!({}))];
    for child in &Child::fork(guest.socket(), guest.scratch().directory(), &children, false) {
        child.reaches("count", 40);
        let first = numbers(&child.output(), "count")[0];
        child.reaches("count", first + 64);
        assert!(!child.output().contains("WRONG"), "{}", child.output());
    }
}

/// Checks the kind of pages that both faces tell.
fn has_pages(guest: &Guest, firecrackers: &str, own: Option<&str>) {
    let field = |path: &str, at: &str| {
        let (status, told) = guest.ask("GET", path, "");
        assert_eq!(status, 200, "{told}");
        serde_json::from_str::<Value>(&told).unwrap().pointer(at).cloned()
    };
    assert_eq!(field("/machine-config", "/huge_pages"), Some(json!(firecrackers)));
    assert_eq!(field("/vm/config", "/machine-config/huge_pages"), Some(json!(firecrackers)));
    assert_eq!(field("/v1/vm", "/config/huge_pages"), own.map(Value::from));
}

#[test]
fn load_from_a_file_with_other_pages_keeps_them() {
    needs!(kvm);
    let mut guest = Boot::small("count mib=4").start();
    guest.wait_for("count");
    let pair = Pair::fresh(guest.scratch());
    pair.take(&guest, "Full");
    let load = |pair: &Pair, kind: Option<&str>| {
        let waiting = Guest::waiting();
        let backend = json!({"backend_type": "File", "backend_path": pair.memory});
        let body = json!({"snapshot_path": pair.state, "mem_backend": backend, "huge_pages": kind,
                          "resume_vm": true});
        let (status, answer) = waiting.ask("PUT", "/snapshot/load", &body.to_string());
        (waiting, status, answer)
    };
    let loaded = |pair: &Pair, kind| {
        let (mut clone, status, answer) = load(pair, kind);
        assert_eq!((status, &*answer), (204, ""));
        goes_on(&mut clone, 4);
        clone
    };
    has_pages(&loaded(&pair, None), "None", None);
    let transparent = loaded(&pair, Some("Transparent"));
    has_pages(&transparent, "Transparent", Some("transparent"));
    assert!(has_advice(&transparent));
    // A snapshot of it has its kind, not that of the first one.
    let later = Pair::fresh(&pair.scratch);
    later.take(&transparent, "Full");
    has_pages(&loaded(&later, None), "Transparent", Some("transparent"));
    let small = loaded(&later, Some("None"));
    has_pages(&small, "None", None);
    assert!(!has_advice(&small));

    let (waiting, status, answer) = load(&pair, Some("2M"));
    let words = "huge_pages: Cannot restore hugetlbfs backed snapshot by mapping the memory file. Please use";
    assert!(status == 400 && answer.contains(words), "{status} {answer}");
    let own = json!({"snapshot": {"path": pair.state, "memory_path": pair.memory, "huge_pages": "2M"}});
    let (status, answer) = waiting.ask("PUT", "/v1/vm", &own.to_string());
    assert!(status == 400 && answer.contains("huge_pages: 2M needs a memory handler"), "{status} {answer}");
}

#[test]
fn snapshots_and_diffs_of_huge_pages_are_exact() {
    needs!(kvm, huge_pages);
    let mut guest = counting();
    assert!(huge_kib(&guest) >= 8 << 10);
    let base = guest.snapshot();
    goes_on(&mut guest, 8);
    guest.pause();
    let (diff, full) = (guest.snapshot_as(&["--diff"]), guest.snapshot());
    guest.resume();
    goes_on(&mut guest, 8);
    assert!(memory_of(&diff.merged()) == memory_of(&full));
    // Zeros of a huge page stay holes.
    let blocks = fs::metadata(full.memory_path()).unwrap().blocks() * 512;
    assert!(blocks < 12 << 20, "{blocks} bytes");
    let diff_blocks = fs::metadata(diff.diff_path()).unwrap().blocks() * 512;
    assert!(diff_blocks < 10 << 20, "{diff_blocks} bytes");
    for snapshot in [&base, &diff, &full] {
        let mut clone = snapshot.restore();
        goes_on(&mut clone, 8);
        let (_, told) = clone.ask("GET", "/machine-config", "");
        assert!(told.contains(r#""huge_pages":"None""#) && huge_kib(&clone) == 0, "{told}");
    }
}

#[test]
fn diff_in_two_files_has_only_written_pages_of_4_kib() {
    needs!(kvm, huge_pages);
    let boot = Boot::small("balloon mib=12").device(["--balloon", "--huge-pages", "2M"]);
    let mut guest = boot.start();
    guest.wait_for("ready");
    let [base, diff] = std::array::from_fn(|_| Pair::fresh(guest.scratch()));
    base.take(&guest, "Full");
    guest.type_in("c");
    assert_eq!(guest.next_number("checked"), 12 << 8);
    guest.pause();
    diff.take(&guest, "Diff");
    let full = guest.snapshot();
    let bytes = merge(&diff.memory, &base.memory);
    assert!(bytes < 1 << 20, "{bytes} bytes");
    assert!(base.bytes() == memory_of(&full));
}

#[test]
fn forks_of_huge_pages_run_on_small_ones() {
    needs!(kvm, huge_pages);
    let mut guest = counting();
    forks_go_on(&guest);
    goes_on(&mut guest, 8);
}

#[test]
fn balloon_keeps_the_hosts_huge_pages() {
    needs!(kvm, huge_pages);
    let mut guest = Boot::small("balloon mib=12").device(["--balloon", "--huge-pages", "2M"]).start();
    guest.wait_for("ready");
    let before = huge_kib(&guest);
    for (mib, found) in [(8, (0, 0)), (0, (0, 8 << 8))] {
        let change = format!(r#"{{"amount_mib":{mib}}}"#);
        assert_eq!(guest.ask("PATCH", "/balloon", &change), (204, String::new()));
        assert_eq!((guest.next_number("empty"), guest.next_number("first")), found);
        assert_eq!(guest.next_number("balloon"), mib << 8);
        assert_eq!(huge_kib(&guest), before);
    }
    guest.type_in("c");
    assert_eq!(guest.next_number("checked"), 12 << 8);
}

#[test]
fn handler_fills_huge_pages_as_a_whole() {
    needs!(kvm, huge_pages, page_faults);
    let guest = counting();
    let pair = Pair::fresh(guest.scratch());
    pair.take(&guest, "Full");
    drop(guest);
    // Firecracker refuses to map the file.
    let waiting = Guest::waiting();
    let body = json!({"snapshot_path": pair.state, "mem_file_path": pair.memory}).to_string();
    let (status, answer) = waiting.ask("PUT", "/snapshot/load", &body);
    assert!(status == 400 && answer.contains("Cannot restore hugetlbfs backed snapshot"), "{answer}");
    let small = json!({"snapshot_path": pair.state, "mem_file_path": pair.memory, "huge_pages": "None",
                       "resume_vm": true});
    let mut waiting = Guest::waiting();
    assert_eq!(waiting.ask("PUT", "/snapshot/load", &small.to_string()), (204, String::new()));
    goes_on(&mut waiting, 8);
    has_pages(&waiting, "None", None);

    let handler = MemoryHandler::serving(&pair.memory, &pair.scratch);
    let mut clone = handler.restore(&pair.state, &json!({"track_dirty_pages": true}));
    let (_, told) = clone.ask("GET", "/machine-config", "");
    assert!(told.contains(r#""huge_pages":"2M""#), "{told}");
    goes_on(&mut clone, 8);
    let mapping = &handler.mappings()[0];
    assert_eq!((&mapping["page_size"], &mapping["page_size_kib"]), (&json!(2 << 20), &json!(2 << 20)));
    assert!(handler.count("page") <= 8 && huge_kib(&clone) >= 8 << 10);
    clone.pause();
    let (diff, whole) = (Pair::fresh(&pair.scratch), Pair { state: pair.state.clone(), ..pair.clone() });
    diff.take(&clone, "Diff");
    let full = clone.snapshot();
    merge(&diff.memory, &whole.memory);
    assert!(whole.bytes() == memory_of(&full));
    // The handler reads the same file, which is the merged one by now.
    let (status, answer) = clone.ask("PUT", "/v1/vm/rewind", "");
    assert_eq!(status, 200, "{answer}");
    assert!(memory_of(&clone.snapshot()) == whole.bytes());
    goes_on(&mut full.restore(), 8);
}

#[test]
fn handler_fills_the_pages_that_a_load_asks_for() {
    needs!(kvm, huge_pages, page_faults);
    let mut guest = Boot::small("count mib=8").start();
    guest.wait_for("count");
    let small = Pair::fresh(guest.scratch());
    small.take(&guest, "Full");
    drop(guest);
    let serve = |pair: &Pair, kind: Option<&str>, page_size: u64| {
        let handler = MemoryHandler::serving(&pair.memory, &pair.scratch);
        let mut clone = handler.restore(&pair.state, &json!({"huge_pages": kind}));
        goes_on(&mut clone, 8);
        assert_eq!(handler.mappings()[0]["page_size"], json!(page_size));
        assert_eq!(huge_kib(&clone) > 0, page_size > 4096);
        (clone, handler)
    };
    let (clone, _handler) = serve(&small, Some("2M"), 2 << 20);
    has_pages(&clone, "2M", Some("2M"));
    let huge = Pair::fresh(&small.scratch);
    huge.take(&clone, "Full");
    drop(clone);
    has_pages(&serve(&huge, None, 2 << 20).0, "2M", Some("2M"));
    has_pages(&serve(&huge, Some("None"), 4096).0, "None", None);
    has_pages(&serve(&small, Some("Transparent"), 4096).0, "Transparent", Some("transparent"));
}

#[test]
fn dead_handler_of_huge_pages_ends_the_vm() {
    needs!(kvm, huge_pages, page_faults);
    let guest = counting();
    let pair = Pair::fresh(guest.scratch());
    pair.take(&guest, "Full");
    drop(guest);
    let mut handler = MemoryHandler::serving(&pair.memory, &pair.scratch);
    let waiting = Guest::waiting();
    // In the lab, the copy of a huge page alone takes longer than a second.
    let patience = if in_lab() { 30 } else { 2 };
    let backend = json!({"backend_type": "Uffd", "backend_path": handler.socket(), "patience": patience});
    let body = json!({"snapshot_path": pair.state, "mem_backend": backend});
    assert_eq!(waiting.ask("PUT", "/snapshot/load", &body.to_string()), (204, String::new()));
    handler.kill();
    let mut clone = waiting;
    clone.resume();
    let outcome = clone.wait_exit();
    assert_eq!(outcome.status, 5, "{outcome:?}");
    assert!(outcome.stderr.contains("no page came for"), "{}", outcome.stderr);
}
