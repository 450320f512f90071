//! The init of test and demo guests: process 1, which mounts file systems and executes orders from the
//! console.
//!
//! ```text
//! mounts ── console ── "volt-init: ready <uptime>" ── orders of the command line ── orders from the console
//! ```
//!
//! An order is one line, and `<name>` is its first word. Its answer has any number of lines, and ends with
//! `ok <name>` or `error <name>: <why>`. Orders that work in the background (`count`, `sleep`, `deadline`,
//! `avx`, `load`, `draw`, `watch-reseeds`) end their answer at once; all but `draw` print whole lines later.
//! [`orders`] lists all orders.

mod aio;
mod avx;
mod bench;
mod bench_stream;
mod client_hello;
mod clock_watch;
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
mod randomness;
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
    if let Err(error) = console::limit_kernel_messages() {
        console::line(&format!("volt-init: the kernel goes on printing: {error}"));
    }
    if let Err(error) = shutdown::end_at_power_button() {
        console::line(&format!("volt-init: no power button: {error}"));
    }
    let uptime = Duration::from_nanos(system::clock_ns(libc::CLOCK_BOOTTIME));
    console::line(&format!("volt-init: ready {:.3}", uptime.as_secs_f64()));

    let given = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    for order in command_line::orders(&given) {
        orders::execute(&order);
    }
    loop {
        orders::execute(&console::read_order());
    }
}
