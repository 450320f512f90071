//! Fuzzes a vsock, programs of the host that connect to the guest, and programs that the guest connects to.
#![no_main]

use libfuzzer_sys::fuzz_target;
use volt_fuzz::devices::vsock::Sockets;
use volt_fuzz::{Program, run};

fuzz_target!(|program: Program<Sockets>| run(Sockets::new(), program));
