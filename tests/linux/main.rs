//! Tests with a real Linux guest: natively if the host's KVM runs Linux, otherwise in the lab. Each
//! behaviour has a room.
//!
//! The guest's init is the project's own (kernel/guest), which takes orders over the console. Images have
//! that of kernel/agent.

// In place of the built-in attribute: it registers a test with the runner.
#[macro_use]
extern crate volt_test_macros;

mod api;
mod boot;
mod device;
mod image;
mod memory;
mod snapshot;

fn main() {
    volt_tests::suite("linux").main()
}
