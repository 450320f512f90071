//! Fuzzes a balloon with all features.
#![no_main]

use libfuzzer_sys::fuzz_target;
use volt_fuzz::devices::balloon::Balloon;
use volt_fuzz::{Program, run};

fuzz_target!(|program: Program<Balloon>| run(Balloon, program));
