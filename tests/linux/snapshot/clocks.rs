//! Linux's clocks after a restore: the TSC, on all processors, and kvmclock continue from their saved values,
//! or jump by the time since the snapshot.

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

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// The clocks of a guest: time of day and monotonic time.
fn both(guest: &mut Guest) -> [Duration; 2] {
    let answer = guest.order("clock");
    ["realtime ", "monotonic "].map(|name| {
        let line = answer.iter().find_map(|line| line.strip_prefix(name));
        Duration::from_nanos(line.expect("a clock").parse().expect("a number"))
    })
}

/// Restores a guest a year after its snapshot, with `--clock realtime`: its clocks jump by the year, and it
/// goes on as usual.
fn jumps_by_a_year(clocksource: &str, irqchip: &str, vcpus: u32) {
    let what = format!("{clocksource}, {irqchip}, {vcpus} vCPUs");
    let words = format!("clocksource={clocksource}");
    let mut guest = Boot::linux().cmdline_words(&words).irqchip(irqchip).vcpus(vcpus).start();
    guest.wait_until_ready();
    guest.order("count");
    // Its end passes while the guest is away.
    guest.order("sleep 20000");
    let before = both(&mut guest);
    let snapshot = guest.snapshot().copy();
    drop(guest);
    snapshot.edit(|state| {
        let realtime = &mut state["machine"]["clock"]["realtime"];
        *realtime = (realtime.as_u64().expect("a time") - YEAR.as_nanos() as u64).into();
    });
    let mut restored = snapshot.restore_as(&["--clock", "realtime"]);
    let after = both(&mut restored);
    for (before, after) in before.into_iter().zip(after) {
        let moved = after.checked_sub(before).expect("a clock went back");
        assert!(moved >= YEAR && moved < YEAR + Duration::from_secs(3600), "{what}: moved by {moved:?}");
    }
    let slept: u64 = restored.next_line("slept 20000 took ").parse().expect("milliseconds");
    assert!(slept > 365 * 24 * 3600 * 1000, "{what}: slept {slept} ms");
    // The counter sleeps 100 ms between two numbers: a year of them does not come at once.
    let (first, [_, from]) = (restored.next_number("count"), both(&mut restored));
    for _ in 0..10 {
        restored.next_number("count");
    }
    let (last, [_, to]) = (restored.next_number("count"), both(&mut restored));
    let most = (to - from).as_millis() / 100 + 3;
    assert!(u128::from(last - first) <= most, "{what}: {first} to {last} in {:?}", to - from);
    restored.order("load 1");
    restored.wait_for("loaded 1");
    let output = restored.output();
    for complaint in ["stall", "lockup", "Call Trace", "corrupt"] {
        assert!(!output.contains(complaint), "{what}: {output}");
    }
}

#[test]
fn kvmclock_guests_jump_by_a_year() {
    needs!(linux);
    jumps_by_a_year("kvm-clock", "split", 4);
    jumps_by_a_year("kvm-clock", "kernel", 1);
}

#[test]
fn tsc_guests_jump_by_a_year() {
    needs!(linux);
    jumps_by_a_year("tsc", "kernel", 4);
    jumps_by_a_year("tsc", "split", 1);
}
