//! Faults of system calls: each act on snapshots fails at each of its calls, or is killed there. The new
//! thing is then complete or absent, the next act works, and the guest runs on.

// In place of the built-in attribute: it registers a test with the runner.
#[macro_use]
extern crate volt_test_macros;

mod files;
mod fork;
mod left;
mod requests;
mod started;
mod two_files;
mod vm;

fn main() {
    volt_tests::suite("faults").main()
}
