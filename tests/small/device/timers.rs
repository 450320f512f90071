//! Timers and interrupts go on after a restore.

use std::time::Duration;

use volt_tests::{Boot, Guest, IRQCHIPS, consecutive, needs, numbers};

/// A guest with both timers, which only the kernel's irqchip has.
fn ticking() -> Guest {
    Boot::small("ticks").irqchip("kernel").start()
}

#[test]
fn the_pit_and_the_apic_timer_tick_on() {
    needs!(kvm);
    let mut guest = ticking();
    guest.next_number("ticks");
    guest.pause();
    let snapshot = guest.snapshot();
    let before = guest.settled_output();
    drop(guest);
    let mut restored = snapshot.restore();
    restored.next_number("ticks");
    restored.next_number("ticks");
    restored.pause();
    let ticks = numbers(&(before + &restored.settled_output()), "ticks");
    assert!((1..).zip(&ticks).all(|(n, &tick)| tick == n * 10), "{ticks:?}");
}

#[test]
fn an_armed_tsc_deadline_wakes_its_sleeper_after_the_restore() {
    needs!(kvm);
    for irqchip in IRQCHIPS {
        let mut guest = Boot::small("deadline megacycles=4000").irqchip(irqchip).start();
        guest.wait_for("armed");
        let snapshot = guest.snapshot();
        assert!(numbers(&guest.output(), "woke").is_empty(), "the snapshot came too late");
        drop(guest);
        // The guest's time stood still meanwhile: it wakes after its deadline (it checks that itself), and in
        // two clones.
        std::thread::sleep(Duration::from_millis(500));
        for mut restored in [snapshot.restore(), snapshot.restore()] {
            restored.next_number("woke");
            assert_eq!(restored.wait_exit().status, 0);
        }
    }
}

#[test]
fn a_deadline_that_passes_around_the_snapshot_is_never_lost() {
    needs!(kvm);
    // Deadlines from far before to far after the moment at which the snapshot is taken: so many that still
    // slept by then.
    const SLEEPERS: usize = 16;
    let (mut megacycles, mut slept) = (0, 0);
    while slept < SLEEPERS {
        megacycles += 10;
        assert!(megacycles < 5000, "only {slept} guests still slept when they were paused");
        let irqchip = IRQCHIPS[slept % 2];
        let boot = Boot::small(&format!("deadline stay=1 megacycles={megacycles}"));
        let mut guest = boot.irqchip(irqchip).start();
        guest.wait_for("armed");
        guest.pause();
        let said = guest.settled_output();
        if said.split("armed").nth(1).is_some_and(|after| !after.trim().is_empty()) {
            continue; // it has begun to say that it woke
        }
        slept += 1;
        let mut restored = guest.snapshot().restore();
        restored.next_number("woke");
    }
}

#[test]
fn a_guest_that_was_paused_gets_its_interrupts() {
    needs!(kvm);
    let mut guest = ticking();
    for _ in 0..10 {
        guest.pause();
        std::thread::sleep(Duration::from_millis(50));
        guest.resume();
        guest.next_number("ticks");
    }
    guest.pause();
    let ticks = guest.settled_output();
    assert!(!ticks.contains("WRONG") && consecutive(&ticks.replace("0\n", "\n"), "ticks") >= 10);
}
