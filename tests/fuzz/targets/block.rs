//! Fuzzes a disk over a raw file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use volt_fuzz::devices::disk::Disk;
use volt_fuzz::{Program, run};

fuzz_target!(|program: Program<Disk>| run(Disk::new(false), program));
