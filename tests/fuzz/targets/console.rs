//! Fuzzes a console and the clients at its socket.
#![no_main]

use libfuzzer_sys::fuzz_target;
use volt_fuzz::devices::console::Console;
use volt_fuzz::{Program, run};

fuzz_target!(|program: Program<Console>| run(Console::default(), program));
