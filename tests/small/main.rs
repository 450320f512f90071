//! Tests with a small freestanding guest, on any KVM. A room for each behaviour.

// In place of the built-in attribute: it registers a test with the runner.
#[macro_use]
extern crate volt_test_macros;

mod api;
mod boot;
mod device;
mod image;
mod memory;
mod names;
mod refused;
mod snapshot;

fn main() {
    volt_tests::memory_handler::become_one_if_asked();
    volt_tests::suite("small").main()
}
