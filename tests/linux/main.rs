//! Tests with a real Linux guest: natively where the host's KVM runs Linux, otherwise in the lab. A file per behaviour.
//!
//! The guest's init is the project's own (kernel/guest), which takes orders over the console.

// In place of the built-in attribute: it registers a test with the runner.
#[macro_use]
extern crate volt_test_macros;

// What several files need.
mod images;

mod balloon;
mod booting;
mod busy;
mod clocks;
mod console;
mod disk;
mod disk_failing;
mod ending;
mod irqchip;
mod lazy;
mod library;
mod limits;
mod memory;
mod mp_table;
mod net;
mod pausing;
mod power_cuts;
mod restoring;
mod rng;
mod stock;
mod timers;
mod vsock;
mod working_set;

fn main() {
    volt_tests::suite("linux").main()
}
