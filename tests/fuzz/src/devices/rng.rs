//! The random device, the smallest one.

use arbitrary::Arbitrary;
use volt_vmm::fuzzing::FuzzedDevice;

use crate::Bench;

/// The device.
#[derive(Clone, Copy, Debug)]
pub struct Rng;

/// The device has no request header, and its host does not act.
#[derive(Debug, Arbitrary)]
pub struct Nothing;

impl From<Nothing> for Vec<u8> {
    fn from(_: Nothing) -> Self {
        vec![0; 4]
    }
}

impl Bench for Rng {
    type Head = Nothing;
    type Host = Nothing;
    const REQUESTS: u8 = 0;

    fn device(&mut self) -> volt_vmm::Result<FuzzedDevice> {
        Ok(FuzzedDevice::rng())
    }

    fn host(&mut self, _: Nothing) {}
}
