//! Fuzzes a disk with a layer over a shared base.
#![no_main]

use libfuzzer_sys::fuzz_target;
use volt_fuzz::devices::disk::Disk;
use volt_fuzz::{Program, run};

fuzz_target!(|program: Program<Disk>| run(Disk::new(true), program));
