//! The binary `volt-vmm`: reads its arguments, runs one subcommand, turns the outcome into an exit status.
//!
//! Downwards from here: `cli` (one file per subcommand) uses `session` (the life of the process around its one VM),
//! which uses `terminal`, `console`, `signals` and `rest`. Nothing here knows KVM.
#![cfg_attr(not(test), no_main)]

mod cli;
mod client;
mod console;
mod exit;
mod failure;
mod progress;
mod rest;
mod session;
mod signals;
mod slot;
mod start;
mod terminal;

use std::io::Write;

/// The C runtime's entry, because Rust's own start-up (a handler for stack overflows, a look at every mapping of the process,
/// a poll of the standard streams) takes a tenth of the time from exec to a restored guest's first instruction. What
/// volt-vmm needs of it is done here. A panic that gets this far aborts, after the hook that puts the terminal back.
#[allow(unsafe_code)]
// SAFETY: the one symbol of this name in the program; the signature is the one C gives it.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
extern "C" fn main(_argument_count: i32, _arguments: *const *const libc::c_char) -> i32 {
    // SAFETY: ignoring a signal has no conditions. A console or client that goes away is an error, not the end.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    occupy_standard_streams();
    let outcome = cli::execute();
    terminal::leave();
    let status = outcome.unwrap_or_else(|failure| {
        eprintln!("volt-vmm: {}", volt_vmm::report(&failure));
        exit::Status::of_failure(&failure)
    });
    let _ = std::io::stdout().flush();
    status.code().into()
}

/// Opens /dev/null in place of standard streams that are closed, so that no other file gets their number and is taken for
/// them.
#[allow(unsafe_code)]
#[cfg_attr(test, allow(dead_code))]
fn occupy_standard_streams() {
    for stream in 0..3 {
        // SAFETY: asks about a descriptor, and opens a file by a constant name; the lowest free number is `stream`.
        unsafe {
            if libc::fcntl(stream, libc::F_GETFD) == -1 {
                libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            }
        }
    }
}
