//! Each ending of Linux has its exit status.

use volt_tests::{Boot, needs};

fn status_after(order: &str) -> i32 {
    let mut guest = Boot::linux().start();
    guest.wait_until_ready();
    guest.order(order);
    guest.wait_exit().status
}

#[test]
fn poweroff_ends_with_status_0() {
    needs!(linux);
    assert_eq!(status_after("poweroff"), 0);
}

#[test]
fn reboot_ends_with_status_3() {
    needs!(linux);
    assert_eq!(status_after("reboot"), 3);
}

#[test]
fn triple_fault_ends_with_status_4() {
    needs!(linux);
    assert_eq!(status_after("triple-fault"), 4);
}

#[test]
fn panic_ends_with_status_7_after_its_messages_and_is_told_from_a_reboot() {
    needs!(linux);
    // With 0, Linux would hang afterwards.
    for words in ["panic=-1", "panic=0"] {
        let mut guest = Boot::linux().cmdline_words(words).start();
        guest.wait_until_ready();
        let restored = guest.snapshot().restore();
        for mut guest in [guest, restored] {
            guest.order("panic");
            let ended = guest.wait_exit();
            assert_eq!(ended.status, 7, "{words}");
            assert!(ended.stdout.contains("Kernel panic - not syncing"), "{words}: {ended:?}");
        }
    }
}

#[test]
fn init_carries_out_orders_of_the_kernel_command_line() {
    needs!(linux);
    let mut guest = Boot::linux().vcpus(2).cmdline_words("volt.orders=cpus;poweroff").start();
    guest.wait_for("cpus 2").wait_for("ok cpus").wait_for("ok poweroff");
    assert_eq!(guest.wait_exit().status, 0);
}

#[test]
fn power_button_ends_linux_also_after_a_restore() {
    needs!(linux);
    for irqchip in ["split", "kernel"] {
        let mut guest = Boot::linux().irqchip(irqchip).start();
        guest.wait_until_ready();
        let snapshot = guest.snapshot();
        let restored = snapshot.restore();
        for mut guest in [guest, restored] {
            guest.press_power_button();
            assert_eq!(guest.wait_exit().status, 0, "{irqchip}");
        }
    }
}

/// Debian's kernel drives the keyboard, which it finds through ACPI, or at its ports without ACPI. Linux
/// restarts at the keys, for no program has asked it not to.
#[test]
fn ctrl_alt_del_restarts_a_kernel_that_drives_the_keyboard() {
    needs!(stock_kernel);
    let firecrackers = "i8042.noaux i8042.nomux i8042.dumbkbd";
    for (irqchip, words) in [("split", ""), ("split", firecrackers), ("kernel", ""), ("kernel", "acpi=off")] {
        let boot = Boot::linux_of("VOLT_STOCK_KERNEL").memory("512M").irqchip(irqchip).cmdline_words(words);
        let mut guest = boot.start();
        guest.wait_until_ready();
        let snapshot = guest.snapshot();
        let restored = snapshot.restore();
        for mut guest in [guest, restored] {
            guest.press_power_button();
            assert_eq!(guest.wait_exit().status, 3, "{irqchip} {words}");
        }
    }
}
