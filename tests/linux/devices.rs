//! Linux finds its virtio devices, both ways, and goes on with them after a restore.

use volt_tests::{Boot, needs};

#[test]
fn virtio_devices_are_found_through_acpi_and_through_the_command_line() {
    needs!(linux);
    for on_cmdline in [false, true] {
        let mut boot = Boot::linux().device(["--rng"]);
        if on_cmdline {
            boot = boot.device(["--devices-on-cmdline"]);
        }
        let mut guest = boot.start();
        guest.wait_until_ready();
        let first = guest.order("random");
        assert!(first[0].starts_with("random virtio_rng.0 "), "{first:?}");
        assert_ne!(guest.order("random"), first);
        // Told of it once, the guest has it once.
        assert!(
            guest
                .type_in("read /sys/bus/virtio/devices/virtio1/device\n")
                .next_line("error read")
                .contains("No such")
        );
    }
}

#[test]
fn a_device_goes_on_in_clones() {
    needs!(linux);
    let mut guest = Boot::linux().vcpus(2).device(["--rng"]).start();
    guest.wait_until_ready();
    guest.order("random");
    let snapshot = guest.snapshot();
    let mut drawn = vec![guest.order("random")];
    for mut clone in [snapshot.restore(), snapshot.restore()] {
        drawn.push(clone.order("random"));
        drawn.push(clone.order("random"));
    }
    for (at, one) in drawn.iter().enumerate() {
        assert!(!drawn[..at].contains(one), "{drawn:?}");
    }
}
