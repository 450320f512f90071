//! Linux finds virtio devices through ACPI and the command line and uses them after a restore. The random
//! device, the simplest one, stands for all.

use volt_tests::{Boot, needs};

#[test]
fn virtio_devices_are_found_through_acpi_or_the_command_line() {
    needs!(linux);
    for on_cmdline in [false, true] {
        let mut boot = Boot::linux().device(["--rng"]);
        if on_cmdline {
            // A kernel with hardware-reduced ACPI chooses its interrupt numbers itself, so ACPI is off.
            boot = boot.device(["--devices-on-cmdline"]).irqchip("kernel").cmdline_words("acpi=off");
        }
        let mut guest = boot.start();
        guest.wait_until_ready();
        let first = guest.order("random");
        assert!(first[0].starts_with("random virtio_rng.0 "), "{first:?}");
        assert_ne!(guest.order("random"), first);
        // The guest has found one device.
        assert!(
            guest
                .type_in("read /sys/bus/virtio/devices/virtio1/device\n")
                .next_line("error read")
                .contains("No such")
        );
    }
}

#[test]
fn random_device_works_in_clones() {
    needs!(linux);
    let mut guest = Boot::linux().vcpus(2).device(["--rng"]).start();
    guest.wait_until_ready();
    guest.order("random");
    let snapshot = guest.snapshot();
    let mut drawn = Vec::new();
    for guest in [&mut guest, &mut snapshot.restore(), &mut snapshot.restore()] {
        // Linux keeps random numbers in reserve, and the clones share the reserve of the snapshot.
        for _ in 0..40 {
            guest.order("random");
        }
        drawn.push(guest.order("random"));
    }
    assert!(drawn[0] != drawn[1] && drawn[1] != drawn[2] && drawn[0] != drawn[2], "{drawn:?}");
}
