//! A kernel without ACPI finds its processors and the IOAPIC in the MP table, and its devices on the command
//! line.

use volt_tests::streams::echoes;
use volt_tests::{Boot, Guest, Network, Scratch, needs};

use crate::device::images::ext4;

/// Devices that interrupt, by their names in `/proc/interrupts`: the serial port, a disk, a network.
const DEVICES: [&str; 3] = ["ttyS0", "virtio0", "virtio1"];

/// Counts the interrupts of each of [`DEVICES`], which all come through the IOAPIC.
fn interrupts(guest: &mut Guest) -> [u64; 3] {
    let table = guest.order("read /proc/interrupts");
    DEVICES.map(|device| {
        let line = table.iter().find(|line| line.ends_with(device)).unwrap_or_else(|| panic!("{table:#?}"));
        assert!(line.contains("IO-APIC"), "{line}");
        line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok()).sum()
    })
}

#[test]
fn kernel_without_acpi_finds_all_processors_and_the_ioapic() {
    needs!(linux, network);
    for vcpus in [1, 4] {
        let (network, scratch) = (Network::new(), Scratch::new());
        network.add_tap("tap0", "10.77.0.1/24");
        let (image, layer) = (ext4(&scratch, "image", 32), scratch.path("layer"));
        // The guest also writes after its snapshot, and a restore refuses a changed image without a layer.
        let disk = format!("path={},layer={}", image.display(), layer.display());
        let devices = ["--disk", &disk, "--net", "tap=tap0", "--devices-on-cmdline"];
        let boot =
            Boot::linux_loud().vcpus(vcpus).irqchip("kernel").cmdline_words("acpi=off").device(devices);
        let mut guest = boot.inside(network.namespace()).start();
        guest.wait_until_ready();
        assert!(guest.output().contains("Intel MultiProcessor Specification v1.4"), "{}", guest.output());
        // A message of the kernel in the middle of an answer's line would hide the line's end.
        guest.order("write /proc/sys/kernel/printk 1");
        guest.order("mount /dev/vda /mnt ext4");
        guest.order("net eth0 10.77.0.2/24");
        guest.order("tcp-echo 80");
        for generation in 0..2 {
            assert_eq!(guest.order("cpus"), [format!("cpus {vcpus}")]);
            let before = interrupts(&mut guest);
            let file = format!("/mnt/file{generation} 256 {generation}");
            guest.order(&format!("put {file}"));
            guest.order(&format!("verify {file}"));
            echoes(&network.connect("10.77.0.2:80"), b"through a device of the command line");
            let after = interrupts(&mut guest);
            assert!(before.iter().zip(&after).all(|(before, after)| after > before), "{before:?} {after:?}");
            guest.order("load 1");
            guest.wait_for("loaded 1");
            if generation == 0 {
                let snapshot = guest.snapshot();
                drop(guest);
                guest = snapshot.restore_inside(network.namespace(), &[]);
            }
        }
    }
}

#[test]
fn mp_table_holds_32_processors() {
    needs!(linux);
    let boot = Boot::linux().vcpus(32).irqchip("kernel").cmdline_words("acpi=off");
    let mut guest = boot.memory("512M").start();
    guest.wait_until_ready();
    assert_eq!(guest.order("cpus"), ["cpus 32"]);
}
