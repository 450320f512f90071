//! A Linux whose packed memory is filled on touch.

use rustix::process::Signal;
use volt_tests::{Boot, Guest, Pressure, Scratch, Snapshot, needs, wait_until};

/// Takes a snapshot of a guest that has filled `mib` of memory with a pattern and checks it while it counts.
fn packed(mib: u64, options: &[&str]) -> Snapshot {
    let mut guest = Boot::linux().vcpus(2).start();
    guest.wait_until_ready();
    guest.order(&format!("fill {mib}"));
    guest.order("count");
    guest.next_number("count");
    guest.snapshot_as(options)
}

/// Checks that the guest finds all of its pattern.
fn checks(guest: &mut Guest) {
    let answer = guest.order("check");
    assert!(answer.iter().any(|line| line.starts_with("generation ")), "{answer:?}");
    guest.next_number("count");
    assert!(!guest.output().contains("corrupt"), "{}", guest.output());
}

#[test]
fn lazy_guest_its_snapshots_and_its_clones_find_each_page() {
    needs!(linux);
    let snapshot = packed(16, &["--compress", "zstd", "--chunk-size", "32K"]);
    let mut clones = [snapshot.restore(), snapshot.restore()];
    clones.iter_mut().for_each(checks);
    let [diff, again] =
        [&["--diff"][..], &["--compress", "lz4"]].map(|options| clones[0].snapshot_as(options));
    drop(clones);
    for snapshot in [&diff, &again, &diff.merged()] {
        checks(&mut snapshot.restore());
    }
}

#[test]
fn guest_survives_a_pager_killed_during_its_faults() {
    needs!(linux);
    let (snapshot, scratch) = (packed(16, &["--compress", "lz4"]), Scratch::new());
    let pagers = scratch.path("pagers");
    let pager = || volt_tests::processes_with(&pagers).pop();
    let send = |signal| rustix::process::kill_process(pager().expect("a pager"), signal).unwrap();
    for _ in 0..3 {
        let mut guest = snapshot.restore_as(&["--pager", "shared", "--pager-dir", pagers.to_str().unwrap()]);
        guest.next_number("count");
        // Faults pile up while the pager is stopped.
        send(Signal::STOP);
        guest.type_in("check\n");
        wait_until("the guest waits for memory", || guest.waits_for_memory());
        send(Signal::KILL);
        guest.next_line("generation ");
        guest.next_line("ok check");
        checks(&mut guest);
        drop(guest);
        // The next guest must not find pages that this guest's pager has read.
        send(Signal::KILL);
        wait_until("there is no pager", || pager().is_none());
    }
}

/// MiB that the guest goes through. A third of it must be swapped out and in.
const GONE_THROUGH: u64 = 48;
/// MiB for the VM and its pager. The kernel cannot swap page tables, KVM's tables and a huge page that is
/// being filled. With 24 MiB it ended the VM in one run of three with huge pages of shared memory.
const GIVEN: u64 = 32;

/// The kernel swaps the guest's own pages and those of the base. The pager fills a page of the base only
/// once.
#[test]
fn guest_under_memory_pressure_finds_each_page() {
    needs!(linux, pressure);
    let (snapshot, scratch) = (packed(GONE_THROUGH, &["--compress", "lz4"]), Scratch::new());
    let pagers = scratch.path("pagers");
    let shared = ["--pager", "shared", "--pager-dir", pagers.to_str().unwrap()];
    for (options, of_it) in [(&[][..], &["--diff"][..]), (&shared, &[])] {
        let pressure = Pressure::of(GIVEN << 20);
        let mut guest = snapshot.restore_under(&pressure, options);
        (0..2).for_each(|_| checks(&mut guest));
        let all = volt_tests::processes_with(&pagers).into_iter().map(|pager| pager.as_raw_nonzero().get());
        let mut all = all.map(i32::cast_unsigned).chain([guest.pid()]);
        assert!(all.all(|process| pressure.holds(process)), "a process is not in the group");
        let swapped_out = pressure.swapped_out();
        assert!(swapped_out > 1 << 20, "{swapped_out} bytes swapped out");
        let again = guest.snapshot_as(of_it);
        checks(&mut guest);
        drop((guest, pressure));
        checks(&mut again.restore());
    }
}

/// MiB that a guest goes through, and less memory and swap than that for its VM.
const TOO_MUCH: u64 = 16;
const MEMORY: u64 = 12;
const SWAP: u64 = 2;

#[test]
fn guest_beyond_memory_and_swap_is_killed_and_its_clone_goes_on() {
    needs!(linux, pressure);
    let snapshot = packed(TOO_MUCH, &["--compress", "lz4"]);
    let mut clone = snapshot.restore();
    clone.next_number("count");
    let pressure = Pressure::of(MEMORY << 20);
    pressure.limit_swap(SWAP << 20);
    let mut guest = snapshot.restore_under(&pressure, &[]);
    guest.type_in("check\n");
    let outcome = guest.wait_exit();
    assert_eq!((outcome.status, pressure.kills()), (-9, 1), "{outcome:?}");
    checks(&mut clone);
}
