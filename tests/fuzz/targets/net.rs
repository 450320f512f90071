//! Fuzzes a network interface and the other end of its connection.
#![no_main]

use libfuzzer_sys::fuzz_target;
use volt_fuzz::devices::net::Wire;
use volt_fuzz::{Program, run};

fuzz_target!(|program: Program<Wire>| run(Wire::default(), program));
