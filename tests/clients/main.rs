//! Clients of Firecracker drive volt-vmm and its jailer with their own code: firecracker-go-sdk and the crate
//! fctools. `scripts/clients.sh` builds the programs of `go` and `fctools` beside this file.

// In place of the built-in attribute: it registers a test with the runner.
#[macro_use]
extern crate volt_test_macros;

mod jailed;
mod snapshots;

fn main() {
    volt_tests::suite("clients").main()
}
