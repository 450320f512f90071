//! Fuzzes the transport: registers in any order, at any offset and of any width, with the smallest device.
#![no_main]

use libfuzzer_sys::fuzz_target;
use volt_fuzz::devices::rng::Rng;
use volt_fuzz::{Program, run};

fuzz_target!(|program: Program<Rng>| run(Rng, program));
