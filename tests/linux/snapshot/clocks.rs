//! Linux's clocks continue from their saved values after a restore: the TSC, on all processors, and kvmclock.

use std::time::{Duration, Instant};

use volt_tests::{Boot, Guest, KvmShim, needs};

fn monotonic(guest: &mut Guest) -> Duration {
    let answer = guest.order("clock");
    let line = answer.iter().find_map(|line| line.strip_prefix("monotonic "));
    Duration::from_nanos(line.expect("a clock").parse().expect("a number"))
}

/// Checks that the guest's clock moves, and by no more than the guest's running time, plus a tenth and 100
/// ms.
fn goes_on(clocksource: &str, vcpus: u32, shim: &KvmShim) {
    let mut guest =
        Boot::linux().cmdline_words(&format!("clocksource={clocksource}")).vcpus(vcpus).on_kvm(shim).start();
    guest.wait_until_ready();
    let first = Instant::now();
    let before = monotonic(&mut guest);
    let snapshot = guest.snapshot();
    drop(guest);
    let ran = first.elapsed();
    std::thread::sleep(Duration::from_secs(3));
    let began = Instant::now();
    let mut restored = snapshot.restore_on(shim, &[]);
    let moved = monotonic(&mut restored).checked_sub(before).expect("the clock does not go back");
    let ran = ran + began.elapsed();
    let most = ran + ran / 10 + Duration::from_millis(100);
    assert!(moved <= most, "{clocksource}, {vcpus} vCPUs: moved by {moved:?} in {ran:?}");
    restored.order("sleep 300");
    let slept: u64 = restored.next_line("slept 300 took ").parse().expect("milliseconds");
    assert!((300..3000).contains(&slept), "{clocksource}, {vcpus} vCPUs: slept {slept} ms");
    if vcpus > 1 {
        restored.order("load 1");
        restored.wait_for("loaded 1");
    }
}

#[test]
fn clocks_continue_by_tsc_offsets() {
    needs!(linux, tsc);
    for (clocksource, vcpus) in [("tsc", 1), ("tsc", 2), ("kvm-clock", 2)] {
        goes_on(clocksource, vcpus, &KvmShim::new());
    }
}

#[test]
fn clocks_continue_without_tsc_offsets() {
    needs!(linux, tsc);
    for (clocksource, vcpus) in [("tsc", 1), ("tsc", 2), ("kvm-clock", 2)] {
        goes_on(clocksource, vcpus, &KvmShim::new().without_tsc_offset());
    }
}
