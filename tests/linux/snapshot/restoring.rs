//! A restored Linux continues with its memory, clocks and registers.

use volt_tests::{Boot, Guest, generations, needs, numbers};

/// Starts a guest that counts and steps through `mib` of checked memory.
fn counting(boot: Boot<'_>, mib: u32) -> Guest {
    let mut guest = boot.start();
    guest.wait_until_ready();
    guest.order(&format!("fill {mib}"));
    guest.order("count");
    while guest.next_number("count") < 3 {}
    guest
}

/// Checks that the guest counts on from `count` and finds no corrupt memory.
fn goes_on_from(guest: &mut Guest, count: u64) {
    assert_eq!(guest.next_number("count"), count + 1);
    assert_eq!(guest.next_number("count"), count + 2);
    let generation = guest.order("check").into_iter().find(|line| line.starts_with("generation "));
    assert!(generation.is_some(), "{}", guest.output());
    assert!(!guest.output().contains("corrupt"), "{}", guest.output());
}

/// Pauses the guest and returns its last number.
fn paused_at(guest: &Guest) -> u64 {
    *numbers(&guest.paused_in_whole_lines(), "count").last().unwrap()
}

#[test]
fn killed_guest_continues_with_its_memory_and_clocks() {
    needs!(linux);
    let mut guest = counting(Boot::linux().vcpus(2), 16);
    let clock = |guest: &mut Guest| -> Vec<u64> {
        let answer = guest.order("clock");
        let of =
            |name: &str| answer.iter().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap();
        ["realtime ", "monotonic ", "boottime "].map(of).to_vec()
    };
    let before = clock(&mut guest);
    guest.order("sleep 3000");
    let count = paused_at(&guest);
    let snapshot = guest.snapshot();
    drop(guest);
    let mut restored = snapshot.restore();
    goes_on_from(&mut restored, count);
    let slept: u64 = restored.line_of_all("slept 3000 took ").parse().unwrap();
    assert!((3000..6000).contains(&slept), "slept {slept} ms");
    let after = clock(&mut restored);
    for (before, after) in before.into_iter().zip(after) {
        let moved = (after - before) / 1_000_000;
        assert!((2000..300_000).contains(&moved), "a clock moved by {moved} ms");
    }
    restored.order("poweroff");
    assert_eq!(restored.wait_exit().status, 0);
}

#[test]
fn running_guest_and_its_clone_both_go_on() {
    needs!(linux);
    let mut guest = counting(Boot::linux(), 8);
    let snapshot = guest.snapshot();
    let mut restored = snapshot.restore();
    for guest in [&mut guest, &mut restored] {
        guest.next_number("count");
        guest.order("check");
        assert!(!guest.output().contains("corrupt"), "{}", guest.output());
    }
}

#[test]
fn two_clones_leave_their_snapshot_unchanged() {
    needs!(linux);
    let guest = counting(Boot::linux(), 8);
    let count = paused_at(&guest);
    let snapshot = guest.snapshot();
    drop(guest);
    let untouched = snapshot.fingerprint();
    let mut clones = [snapshot.restore(), snapshot.restore()];
    for clone in &mut clones {
        goes_on_from(clone, count);
    }
    // A clone does not see the files of another.
    clones[0].order("write /tmp/mine only here");
    // The answer may include numbers.
    let read = clones[0].order("read /tmp/mine");
    assert!(read.iter().any(|line| line == "only here"), "{read:?}");
    clones[1].type_in("read /tmp/mine\n").wait_for("error read: ");
    drop(clones);
    assert_eq!(snapshot.fingerprint(), untouched);
}

#[test]
fn generations_of_snapshots_lose_nothing() {
    needs!(linux);
    let mut guest = counting(Boot::linux(), 4);
    for _ in 0..2 * generations() {
        let count = paused_at(&guest);
        guest = guest.snapshot().restore();
        assert_eq!(guest.next_number("count"), count + 1);
    }
    let count = paused_at(&guest);
    guest.resume();
    goes_on_from(&mut guest, count);
}

#[test]
fn guest_of_4_gib_is_restored_with_memory_above_the_hole() {
    needs!(linux);
    let guest = counting(Boot::linux().memory("4G"), 64);
    let count = paused_at(&guest);
    let snapshot = guest.snapshot();
    drop(guest);
    goes_on_from(&mut snapshot.restore(), count);
}

#[test]
fn four_vcpus_are_restored() {
    needs!(linux);
    let guest = counting(Boot::linux().vcpus(4), 4);
    let count = paused_at(&guest);
    let mut restored = guest.snapshot().restore();
    drop(guest);
    goes_on_from(&mut restored, count);
    assert!(restored.order("cpus").contains(&"cpus 4".to_owned()));
    restored.order("load 1");
    restored.wait_for("loaded 1");
}

#[test]
fn avx_registers_survive_snapshots() {
    needs!(linux);
    let mut guest = Boot::linux().start();
    guest.wait_until_ready();
    guest.order("avx");
    for _ in 0..3 {
        let rounds = guest.next_number("avx ok");
        guest = guest.snapshot().restore();
        assert!(guest.next_number("avx ok") >= rounds);
        guest.next_number("avx ok");
        assert!(!guest.output().contains("corrupt"), "{}", guest.output());
    }
}

#[test]
fn console_takes_input_after_a_restore() {
    needs!(linux);
    let mut guest = Boot::linux().start();
    guest.wait_until_ready();
    for word in ["first", "second", "third"] {
        guest = guest.snapshot().restore();
        assert_eq!(guest.order(&format!("echo {word}")), [word]);
    }
}
