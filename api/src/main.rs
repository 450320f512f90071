//! The binary `volt-vmm`: reads its arguments, runs one subcommand, turns the outcome into an exit status.
//!
//! Downwards from here: `cli` (one file per subcommand) uses `session` (the life of the process around its one VM),
//! which uses `terminal`, `console`, `signals` and `rest`. Nothing here knows KVM.
#![cfg_attr(not(test), no_main)]

mod cli;
mod client;
mod cures;
mod failure;
mod output;
mod process;
mod rest;
mod session;
mod terminal;

use std::ffi::{CStr, OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

/// musl's own heap maps and unmaps pages with nearly every allocation of some size, which is felt on the way to a restore.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// The C runtime's entry, because Rust's own start-up (a handler for stack overflows, a look at every mapping of the process,
/// a poll of the standard streams) takes a tenth of the time from exec to a restored guest's first instruction. What
/// volt-vmm needs of it is done here. A panic that gets this far aborts, after the hook that puts the terminal back.
#[allow(unsafe_code)]
// SAFETY: the one symbol of this name in the program; the signature is the one C gives it.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
extern "C" fn main(argument_count: i32, arguments: *const *const libc::c_char) -> i32 {
    // SAFETY: ignoring a signal has no conditions. A console or client that goes away is an error, not the end.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    occupy_standard_streams();
    process::log::start();
    // SAFETY: `main` has them from the C runtime.
    let outcome = cli::execute(unsafe { owned(argument_count, arguments) });
    terminal::leave();
    let status = outcome.unwrap_or_else(|failure| {
        eprintln!("volt-vmm: {}", failure.report(cures::as_option));
        process::exit::Status::of_failure(&failure)
    });
    let _ = std::io::stdout().flush();
    status.code().into()
}

/// The arguments of a C `main`. (Rust's own `std::env::args` has none without Rust's own start-up where the C library is musl.)
///
/// # Safety
/// `arguments` has `count` pointers to strings that end in a zero.
#[allow(unsafe_code)]
#[cfg_attr(test, allow(dead_code))]
unsafe fn owned(count: i32, arguments: *const *const libc::c_char) -> Vec<OsString> {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the caller's promise.
    let one = |index| unsafe { CStr::from_ptr(*arguments.add(index)) };
    (0..count).map(|index| OsStr::from_bytes(one(index).to_bytes()).to_owned()).collect()
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
