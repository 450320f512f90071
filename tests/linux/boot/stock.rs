//! Debian's cloud kernel, a bzImage, finds its devices through ACPI.

use volt_tests::{Boot, needs};

#[test]
fn stock_kernel_boots_and_is_restored() {
    needs!(stock_kernel);
    let mut guest = Boot::linux_of("VOLT_STOCK_KERNEL").memory("512M").vcpus(2).start();
    guest.wait_until_ready();
    assert_eq!(guest.order("cpus"), ["cpus 2"]);
    assert!(guest.order("uname")[0].contains("cloud"), "{}", guest.output());
    guest.order("fill 4");
    guest.order("count");
    guest.next_number("count");
    guest.pause();
    let snapshot = guest.snapshot();
    drop(guest);
    let mut restored = snapshot.restore();
    restored.next_number("count");
    restored.order("check");
    assert!(!restored.output().contains("corrupt"), "{}", restored.output());
    restored.order("poweroff");
    assert_eq!(restored.wait_exit().status, 0);
}
