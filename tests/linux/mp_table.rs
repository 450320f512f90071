//! A kernel that is to do without ACPI finds its processors and the IOAPIC in the MP table.

use volt_tests::{Boot, needs};

#[test]
fn the_stock_kernel_without_acpi_has_all_processors_and_the_ioapic() {
    needs!(linux, stock_kernel);
    for vcpus in [1, 4] {
        let boot = Boot::linux_of("VOLT_STOCK_KERNEL").memory("512M").vcpus(vcpus).irqchip("kernel");
        let mut guest = boot.and("acpi=off").start();
        guest.wait_until_ready();
        assert_eq!(guest.order("cpus"), [format!("cpus {vcpus}")]);
        let table = guest.order("read /proc/interrupts");
        let serial = table.iter().find(|line| line.ends_with("ttyS0")).expect("the serial port interrupts");
        assert!(serial.contains("IO-APIC"), "{serial}");
        let mut restored = guest.snapshot().restore();
        drop(guest);
        assert_eq!(restored.order("cpus"), [format!("cpus {vcpus}")]);
        restored.order("load 1");
        restored.wait_for("loaded 1");
    }
}
