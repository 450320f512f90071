//! `poweroff`, `reboot`, `triple-fault` and `panic`: end the machine, as its power button does.
//!
//! Each first prints its `ok` line and waits until the line has left the serial port. It returns only if the
//! machine did not end.

use std::fs;
use std::io;

use crate::console;
use crate::outcome::Outcome;
use crate::system;

/// `poweroff`: powers off through ACPI.
pub(crate) fn power_off(name: &str) -> Outcome {
    end_answer(name);
    Err(system::reboot(libc::RB_POWER_OFF).to_string())
}

/// `reboot`: reboots by the kernel's method, or that of `reboot=` on its command line.
pub(crate) fn reboot(name: &str) -> Outcome {
    end_answer(name);
    Err(system::reboot(libc::RB_AUTOBOOT).to_string())
}

/// `triple-fault`: reboots by a fault without an interrupt table.
pub(crate) fn triple_fault(name: &str) -> Outcome {
    fs::write("/sys/kernel/reboot/type", "triple")
        .map_err(|error| format!("/sys/kernel/reboot/type: {error}"))?;
    reboot(name)
}

/// `panic`: makes the kernel panic. `panic=` on its command line says what it does afterwards.
pub(crate) fn panic_kernel(name: &str) -> Outcome {
    end_answer(name);
    fs::write("/proc/sysrq-trigger", "c").map_err(|error| format!("/proc/sysrq-trigger: {error}"))
}

/// Signal of the power button (`CONFIG_ACPI_TINY_POWER_BUTTON_SIGNAL`).
const POWER_BUTTON: i32 = 38;

/// Powers off when the kernel says that the power button was pressed.
pub(crate) fn end_at_power_button() -> io::Result<()> {
    /// A signal handler: it makes system calls alone.
    extern "C" fn power_off(_: libc::c_int) {
        system::sync();
        system::reboot(libc::RB_POWER_OFF);
    }
    system::at_signal(POWER_BUTTON, power_off)
}

fn end_answer(name: &str) {
    system::sync();
    console::line(&format!("ok {name}"));
    console::drain();
}
