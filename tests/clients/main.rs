//! Clients that others wrote: two versions of firecracker-go-sdk and the crate fctools drive volt-vmm and its
//! jailer with their own code, and schemathesis tries what a description of the API allows. E2B's client
//! drives the agent of guests, and images come from distribution's registry.
//! `scripts/clients.sh` builds the programs of `go` and `fctools` beside this file, and installs the third.

// In place of the built-in attribute: it registers a test with the runner.
#[macro_use]
extern crate volt_test_macros;

mod agent;
mod descriptions;
mod devices;
mod jailed;
mod registry;
mod snapshots;

fn main() {
    volt_tests::memory_handler::become_one_if_asked();
    volt_tests::suite("clients").main()
}
