//! `poweroff`, `reboot`, `triple-fault` and `panic`: the ways a machine ends.
//!
//! Each prints its `ok` line first and waits until that has left the serial port; it returns only if the machine
//! did not end.

use std::fs;

use crate::console;
use crate::outcome::Outcome;
use crate::system;

/// `poweroff`: through ACPI.
pub(crate) fn power_off(name: &str) -> Outcome {
    farewell(name);
    Err(system::reboot(libc::RB_POWER_OFF).to_string())
}

/// `reboot`: by the means that the kernel chose, or that `reboot=` on its command line names.
pub(crate) fn reboot(name: &str) -> Outcome {
    farewell(name);
    Err(system::reboot(libc::RB_AUTOBOOT).to_string())
}

/// `triple-fault`: a reboot that takes the interrupt table away and faults.
pub(crate) fn triple_fault(name: &str) -> Outcome {
    fs::write("/sys/kernel/reboot/type", "triple")
        .map_err(|error| format!("/sys/kernel/reboot/type: {error}"))?;
    reboot(name)
}

/// `panic`: a kernel panic, with a reboot right after it.
pub(crate) fn panic_kernel(name: &str) -> Outcome {
    fs::write("/proc/sys/kernel/panic", "-1").map_err(|error| format!("/proc/sys/kernel/panic: {error}"))?;
    farewell(name);
    fs::write("/proc/sysrq-trigger", "c").map_err(|error| format!("/proc/sysrq-trigger: {error}"))
}

fn farewell(name: &str) {
    system::sync();
    console::line(&format!("ok {name}"));
    console::drain();
}
