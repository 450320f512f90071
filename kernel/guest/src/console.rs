//! The console: this process's standard input and output. Threads write whole lines.

use std::fs::OpenOptions;
use std::io::{BufRead, Write};
use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::system;

/// Makes the console standard input, output and error, without echo.
///
/// A kernel started without `console=` has no /dev/console; the first serial port replaces it.
pub(crate) fn open() {
    for path in ["/dev/console", "/dev/ttyS0", "/dev/null"] {
        if let Ok(file) = OpenOptions::new().read(true).write(true).open(path) {
            for standard in 0..=2 {
                system::duplicate(file.as_raw_fd(), standard);
            }
            // The kernel may have opened the console for this process; its descriptors stay open.
            if file.as_raw_fd() <= 2 {
                std::mem::forget(file);
            }
            system::echo_off(0);
            return;
        }
    }
}

/// Limits the kernel's messages on the console to warnings and errors.
///
/// A message may split a line of an answer. A lower limit, from `quiet` or `loglevel=`, stays.
pub(crate) fn limit_kernel_messages() -> std::io::Result<()> {
    const LEVELS: &str = "/proc/sys/kernel/printk";
    // The first of four numbers: the kernel prints messages of lower levels, and 4 means warnings
    // (proc_sys_kernel(5)).
    const UP_TO_WARNINGS: u32 = 5;
    let levels = std::fs::read_to_string(LEVELS)?;
    let printed = levels.split_whitespace().next().and_then(|level| level.parse::<u32>().ok());
    if printed.is_none_or(|level| level > UP_TO_WARNINGS) {
        std::fs::write(LEVELS, UP_TO_WARNINGS.to_string())?;
    }
    Ok(())
}

/// Writes one line.
pub(crate) fn line(text: &str) {
    let mut whole = String::with_capacity(text.len() + 1);
    whole.push_str(text);
    whole.push('\n');
    // A failed write to the console has no other place for its report.
    let mut output = std::io::stdout().lock();
    let _ = output.write_all(whole.as_bytes()).and_then(|()| output.flush());
}

/// Waits until all output has left the serial port.
pub(crate) fn drain() {
    system::drain(1);
}

/// Waits for the next order, a line that is not empty.
///
/// It waits at the end of input too: process 1 must not end.
pub(crate) fn read_order() -> String {
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        match std::io::stdin().lock().read_until(b'\n', &mut bytes) {
            Ok(count) if count > 0 => {
                let text = String::from_utf8_lossy(&bytes);
                if !text.trim().is_empty() {
                    return text.trim().to_owned();
                }
            }
            _ => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}
