//! Linux with a split irqchip: no PIC, no PIT, and the IOAPIC in volt-vmm.

use volt_tests::{Boot, Guest, needs, numbers};

/// Counts the interrupts of a device on all processors.
fn interrupts(guest: &mut Guest, device: &str) -> u64 {
    let table = guest.order("read /proc/interrupts");
    let line = table.iter().find(|line| line.ends_with(device)).unwrap_or_else(|| panic!("{table:#?}"));
    line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok()).sum()
}

/// Draws more random numbers than Linux keeps in reserve.
fn draw(guest: &mut Guest) {
    for _ in 0..20 {
        guest.order("random");
    }
}

#[test]
fn split_irqchip_gives_the_best_clock_and_no_kernel_warning() {
    needs!(linux);
    let mut guest = Boot::linux_loud().irqchip("split").vcpus(2).start();
    guest.wait_until_ready();
    let processors = guest.order("read /proc/cpuinfo").concat();
    let steady = ["constant_tsc", "nonstop_tsc"].into_iter().all(|flag| processors.contains(flag));
    let clock = if steady { "tsc" } else { "kvm-clock" };
    let mut of = |what: &str| guest.order(&format!("read /sys/devices/system/{what}")).concat();
    // A guest prefers a TSC that never stops or changes its rate (kvmclock_init of Linux).
    assert_eq!(of("clocksource/clocksource0/current_clocksource"), clock);
    assert_eq!(of("clockevents/clockevent0/current_device"), "lapic-deadline");
    let said = guest.output().to_lowercase();
    for trouble in [
        "timer doesn't work",
        "spurious",
        "nobody cared",
        "unable to calibrate",
        "firmware bug",
        "warning",
        "bug:",
    ] {
        assert!(!said.contains(trouble), "{trouble}: {said}");
    }
}

#[test]
fn interrupts_go_on_after_restores_with_1_and_2_vcpus() {
    needs!(linux);
    for (irqchip, vcpus) in [("split", 1), ("split", 2), ("kernel", 2)] {
        let mut guest = Boot::linux().irqchip(irqchip).vcpus(vcpus).device(["--rng"]).start();
        guest.wait_until_ready();
        guest.order("fill 8");
        guest.order("count");
        guest.order("random");
        guest.next_number("count");
        for _ in 0..2 {
            let said = guest.paused_in_whole_lines();
            let snapshot = guest.snapshot();
            assert_eq!(snapshot.state()["config"]["irqchip"], irqchip);
            drop(guest);
            guest = snapshot.restore();
            if let Some(count) = numbers(&said, "count").last() {
                assert_eq!(guest.next_number("count"), count + 1, "{irqchip}, {vcpus} vCPUs");
            }
            // The serial port and a virtio device interrupt.
            let before = ["ttyS0", "virtio0"].map(|device| interrupts(&mut guest, device));
            draw(&mut guest);
            let after = ["ttyS0", "virtio0"].map(|device| interrupts(&mut guest, device));
            assert!(after[0] > before[0] && after[1] > before[1], "{irqchip}: {before:?} {after:?}");
            guest.order("load 1");
            guest.wait_for("loaded 1");
        }
        guest.order("check");
        assert!(!guest.output().contains("corrupt"), "{irqchip}: {}", guest.output());
        guest.order("sleep 300");
        guest.next_line("slept 300 took ");
        guest.order("poweroff");
        assert_eq!(guest.wait_exit().status, 0, "{irqchip}");
    }
}

#[test]
fn interrupt_can_be_moved_to_another_processor() {
    needs!(linux);
    let mut guest = Boot::linux().irqchip("split").vcpus(2).device(["--rng"]).start();
    guest.wait_until_ready();
    let table = guest.order("read /proc/interrupts");
    let line = table.iter().find(|line| line.ends_with("virtio0")).expect("the device interrupts");
    let number = line.split(':').next().unwrap().trim().to_owned();
    for processor in ["1", "0", "1"] {
        guest.order(&format!("write /proc/irq/{number}/smp_affinity_list {processor}"));
        guest = guest.snapshot().restore();
        draw(&mut guest);
        let effective = guest.order(&format!("read /proc/irq/{number}/effective_affinity_list"));
        assert_eq!(effective, [processor]);
    }
}

#[test]
fn stock_kernel_runs_with_a_split_irqchip() {
    needs!(stock_kernel);
    let mut guest = Boot::linux_of("VOLT_STOCK_KERNEL").memory("512M").vcpus(2).irqchip("split").start();
    guest.wait_until_ready();
    guest.order("fill 4");
    guest.order("count");
    guest.next_number("count");
    let snapshot = guest.snapshot();
    drop(guest);
    let mut restored = snapshot.restore();
    restored.next_number("count");
    restored.order("check");
    assert!(!restored.output().contains("corrupt"), "{}", restored.output());
    restored.order("poweroff");
    assert_eq!(restored.wait_exit().status, 0);
}
