//! The init of test and demo guests: process 1, which sets up the machine and takes orders over the console.
//!
//! ```text
//! mounts ── console ── "volt-init: ready <uptime>" ── orders of the command line ── orders from the console, for ever
//! ```
//!
//! An order is one line. It is answered by any number of lines and closed by exactly one, `ok <name>` or
//! `error <name>: <why>`, where `<name>` is the order's first word. Orders that go on in the background (`count`,
//! `sleep`, `deadline`, `avx`, `load`) are closed at once and print their lines as they come, each whole. What orders
//! there are is listed in [`orders`].

mod aio;
mod avx;
mod bench;
mod command_line;
mod console;
mod counter;
mod files;
mod mounts;
mod orders;
mod outcome;
mod pattern;
mod processors;
mod programs;
mod shutdown;
mod sleepers;
mod streams;
mod system;

use std::time::Duration;

fn main() {
    if std::process::id() != 1 {
        eprintln!("volt-init: this is the guest's process 1 and nothing else");
        std::process::exit(1);
    }
    let problems = mounts::mount_all();
    console::open();
    for problem in problems {
        console::line(&format!("volt-init: {problem}"));
    }
    if let Err(error) = console::calm_kernel() {
        console::line(&format!("volt-init: the kernel goes on printing: {error}"));
    }
    let uptime = Duration::from_nanos(system::clock_ns(libc::CLOCK_BOOTTIME));
    console::line(&format!("volt-init: ready {:.3}", uptime.as_secs_f64()));

    let given = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    for order in command_line::orders(&given) {
        orders::obey(&order);
    }
    loop {
        orders::obey(&console::read_order());
    }
}
