//! Fuzzes the transport: registers in any order, at any offset and of any width, with the smallest device.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use volt_fuzz::{Bench, Program, run};
use volt_vmm::fuzzing::FuzzedDevice;

#[derive(Debug)]
struct Host;

/// The device has no request header, and its host does not act.
#[derive(Debug, Arbitrary)]
struct Nothing;

impl From<Nothing> for Vec<u8> {
    fn from(_: Nothing) -> Self {
        vec![0; 4]
    }
}

impl Bench for Host {
    type Head = Nothing;
    type Host = Nothing;
    const REQUESTS: u8 = 0;

    fn device(&mut self) -> volt_vmm::Result<FuzzedDevice> {
        Ok(FuzzedDevice::rng())
    }

    fn host(&mut self, _: Nothing) {}
}

fuzz_target!(|program: Program<Host>| run(Host, program));
