//! The binary `volt-vmm`: parses its arguments, runs one subcommand and returns its exit status.
//!
//! Layers, from the top: `cli` (one file per subcommand), `session` (the process around its one VM), then
//! `terminal`, `process` and `rest`. Beside them, `run_dir` has the files of VMs with names, and `serial`
//! their ports. Only the library calls KVM.
#![cfg_attr(not(test), no_main)]

mod agent;
mod cli;
mod client;
mod cures;
mod descriptors;
mod failure;
mod fatal_signals;
mod guest_agent;
mod image_start;
mod messages;
mod output;
mod process;
mod registry;
mod rest;
mod run_dir;
mod serial;
mod session;
mod terminal;
mod threads;

use std::ffi::{CStr, OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

/// Replaces musl's heap, which maps and unmaps pages for most larger allocations and so delays a restore.
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// The entry point that the C runtime calls.
///
/// Rust's start-up code takes a tenth of the time from exec to a restored guest's first instruction. It
/// installs a handler for stack overflows, reads every mapping of the process and polls the standard streams.
/// This function does the parts that volt-vmm needs. A panic that reaches it runs the hook, which resets the
/// terminal, and aborts.
#[allow(unsafe_code)]
// SAFETY: no other symbol of the program has this name, and C defines this signature.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
extern "C" fn main(argument_count: i32, arguments: *const *const libc::c_char) -> i32 {
    // A write to a closed console or client is then an error and does not end the process.
    // SAFETY: a signal may be ignored at any time.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    occupy_standard_streams();
    process::log::start();
    // SAFETY: the C runtime passed both values.
    let outcome = cli::execute(unsafe { to_owned(argument_count, arguments) });
    terminal::leave_raw_mode();
    let status = outcome.unwrap_or_else(|failure| {
        let report = failure.report(cures::as_option);
        messages::say(format!("volt-vmm: {}", messages::harmless(&report)));
        process::exit::Status::of_failure(&failure)
    });
    let _ = std::io::stdout().flush();
    status.code().into()
}

/// Copies the arguments of a C `main`. With musl, `std::env::args` is empty without Rust's start-up code.
///
/// # Safety
/// `arguments` points to `count` pointers to zero-terminated strings.
#[allow(unsafe_code)]
#[cfg_attr(test, allow(dead_code))]
unsafe fn to_owned(count: i32, arguments: *const *const libc::c_char) -> Vec<OsString> {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the caller guarantees a valid string at every index below `count`.
    let one = |index| unsafe { CStr::from_ptr(*arguments.add(index)) };
    (0..count).map(|index| OsStr::from_bytes(one(index).to_bytes()).to_owned()).collect()
}

/// Opens /dev/null for each closed standard stream, so that no other file gets its number.
#[allow(unsafe_code)]
#[cfg_attr(test, allow(dead_code))]
fn occupy_standard_streams() {
    for stream in 0..3 {
        // SAFETY: queries a descriptor and opens a constant path. The lowest free number is `stream`.
        unsafe {
            if libc::fcntl(stream, libc::F_GETFD) == -1 {
                libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            }
        }
    }
}
