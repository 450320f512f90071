//! Timers and interrupts go on after a restore.

use std::time::Duration;

use volt_tests::{Boot, Guest, IRQCHIPS, consecutive, needs, numbers};

/// Starts a guest with both timers, which only the kernel's irqchip has.
fn ticking() -> Guest {
    Boot::small("ticks").irqchip("kernel").start()
}

#[test]
fn pit_and_apic_timer_tick_on_after_the_restore() {
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
fn armed_tsc_deadline_wakes_its_sleeper_after_the_restore() {
    needs!(kvm);
    for irqchip in IRQCHIPS {
        let mut guest = Boot::small("deadline megacycles=4000").irqchip(irqchip).start();
        guest.wait_for("armed");
        let snapshot = guest.snapshot();
        assert!(numbers(&guest.output(), "woke").is_empty(), "the snapshot came too late");
        drop(guest);
        // The guest's time stood still meanwhile. The guest checks that it wakes after its deadline.
        std::thread::sleep(Duration::from_millis(500));
        for mut restored in [snapshot.restore(), snapshot.restore()] {
            restored.next_number("woke");
            assert_eq!(restored.wait_exit().status, 0);
        }
    }
}

#[test]
fn deadline_that_passes_during_the_snapshot_wakes_its_sleeper() {
    needs!(kvm);
    // Deadlines from far before to far after the snapshot, until enough guests still slept at the pause.
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
            continue; // the guest has begun to report that it woke
        }
        slept += 1;
        let mut restored = guest.snapshot().restore();
        restored.next_number("woke");
    }
}

#[test]
fn paused_guest_gets_its_interrupts_after_resume() {
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
