//! Interrupt controllers in the kernel and split behave alike: interrupts are delivered, masked edges are
//! lost, and pending interrupts survive a snapshot.

use serde_json::Value;
use volt_tests::{Boot, Guest, IRQCHIPS, Snapshot, needs};

/// Starts the small guest with this irqchip.
fn boot(irqchip: &str, cmdline: &str) -> Guest {
    Boot::small(cmdline).irqchip(irqchip).device(["--rng"]).start()
}

/// Restores the snapshot and checks that the machine has this irqchip.
fn restored(snapshot: &Snapshot, irqchip: &str) -> Guest {
    let state = snapshot.state();
    assert_eq!(state["config"]["irqchip"], irqchip);
    assert_eq!(state["machine"]["irqchip"] == Value::Null, irqchip == "split");
    assert_eq!(state["machine"]["devices"]["ioapic"] == Value::Null, irqchip == "kernel");
    snapshot.restore()
}

#[test]
fn ioapic_registers_survive_restores() {
    needs!(kvm);
    for irqchip in IRQCHIPS {
        let mut guest = boot(irqchip, "ioapic-registers");
        guest.next_number("round");
        for _ in 0..3 {
            guest = restored(&guest.snapshot(), irqchip);
            guest.next_number("round");
            guest.next_number("round");
            assert!(!guest.output().contains("WRONG"), "{irqchip}: {}", guest.output());
        }
    }
}

#[test]
fn device_wakes_a_sleeping_guest_in_every_pin_mode() {
    needs!(kvm);
    for irqchip in IRQCHIPS {
        for entry in [
            "",                           // fixed, physical, edge-triggered
            "entry=256",                  // lowest priority
            "entry=2048 destination=1",   // logical
            "entry=2304 destination=255", // lowest priority among all
            "entry=32768", // level-triggered: each interrupt waits for the end of the one before
            "entry=40960", // and active low
        ] {
            let mut guest = boot(irqchip, &format!("ioapic-random {entry}"));
            let number = guest.next_number("drawn");
            assert_eq!(guest.next_number("drawn"), number + 1, "{irqchip} {entry}");
            // The snapshot neither loses the interrupt that the guest waits for nor leaves its pin stuck.
            for _ in 0..3 {
                let before = guest.next_number("drawn");
                guest = restored(&guest.snapshot(), irqchip);
                assert!(guest.next_number("drawn") >= before, "{irqchip} {entry}");
                guest.next_number("drawn");
                guest.next_number("drawn");
            }
        }
    }
}

#[test]
fn edge_at_a_masked_pin_is_lost() {
    needs!(kvm);
    for irqchip in IRQCHIPS {
        let mut guest = boot(irqchip, "ioapic-masked");
        guest.wait_for("ready").type_in("a");
        assert_eq!(guest.next_number("masked"), 0, "{irqchip}");
        let mut clone = restored(&guest.snapshot(), irqchip);
        for guest in [&mut guest, &mut clone] {
            guest.type_in("b");
            assert_eq!((guest.next_number("masked"), guest.next_number("unmasked")), (0, 0), "{irqchip}");
            guest.type_in("c");
            assert_eq!(guest.next_number("taken"), 1, "{irqchip}");
            guest.type_in("d");
            assert_eq!(guest.next_number("taken"), 2, "{irqchip}");
        }
    }
}

#[test]
fn pending_interrupt_of_the_local_apic_is_taken_after_the_restore() {
    needs!(kvm);
    for irqchip in IRQCHIPS {
        let mut guest = boot(irqchip, "ioapic-pending");
        guest.wait_for("ready").type_in("a");
        assert_eq!(guest.next_number("pending"), 0);
        let snapshot = guest.snapshot();
        for mut guest in [guest, restored(&snapshot, irqchip)] {
            guest.type_in("b");
            assert_eq!(guest.next_number("taken"), 1, "{irqchip}");
            assert_eq!(guest.wait_exit().status, 0);
        }
    }
}

#[test]
fn snapshot_without_irqchip_field_restores_with_controllers_in_the_kernel() {
    needs!(kvm);
    let mut guest = boot("kernel", "ioapic-random");
    guest.next_number("drawn");
    let old = guest.snapshot();
    old.edit(|state| {
        state["version"] = 1.into();
        state["config"].as_object_mut().unwrap().remove("irqchip");
        state["config"].as_object_mut().unwrap().remove("vmgenid");
        state["machine"]["devices"].as_object_mut().unwrap().remove("generation");
    });
    let mut guest = old.restore();
    guest.next_number("drawn");
    guest.next_number("drawn");
    assert_eq!(guest.snapshot().state()["config"]["irqchip"], "kernel");
}

#[test]
fn state_of_another_irqchip_is_refused() {
    needs!(kvm);
    for (irqchip, other) in [("kernel", "split"), ("split", "kernel")] {
        let mut guest = boot(irqchip, "ioapic-random");
        guest.next_number("drawn");
        let snapshot = guest.snapshot();
        snapshot.edit(|state| state["config"]["irqchip"] = other.into());
        snapshot.try_restore().refused(&["state.json", "irqchip"]);
    }
    let mut guest = boot("split", "ioapic-random");
    guest.next_number("drawn");
    let snapshot = guest.snapshot();
    snapshot.edit(|state| state["machine"]["devices"]["ioapic"]["pins"] = [0; 3].as_slice().into());
    snapshot.try_restore().refused(&["state.json", "ioapic"]);
}

#[test]
fn unknown_irqchip_is_refused() {
    let outcome = Boot::small("hello").irqchip("none").outcome();
    assert!(outcome.status == 2 && outcome.stderr.contains("--irqchip"), "{outcome:?}");
}
