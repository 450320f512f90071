//! A balloon with all features.

use arbitrary::Arbitrary;
use volt_vmm::config::devices::BalloonConfig;
use volt_vmm::fuzzing::FuzzedDevice;

use crate::Bench;

/// The balloon.
#[derive(Clone, Copy, Debug)]
pub struct Balloon;

/// Page numbers, some of them adjacent.
#[derive(Debug, Arbitrary)]
pub struct Pages {
    first: u32,
    step: i8,
    count: u8,
}

impl From<Pages> for Vec<u8> {
    fn from(pages: Pages) -> Self {
        let page = |number: u8| {
            let offset = i32::from(pages.step).wrapping_mul(number.into());
            pages.first.wrapping_add_signed(offset).to_le_bytes()
        };
        (0..pages.count).flat_map(page).collect()
    }
}

/// The host does not act.
#[derive(Debug, Arbitrary)]
pub struct Nothing;

impl Bench for Balloon {
    type Head = Pages;
    type Host = Nothing;
    const REQUESTS: u8 = 0;

    fn device(&mut self) -> volt_vmm::Result<FuzzedDevice> {
        let config = BalloonConfig {
            target_mib: 0,
            deflate_on_oom: true,
            statistics_interval: 1,
            reporting: true,
            hinting: true,
        };
        FuzzedDevice::balloon(&config)
    }

    fn host(&mut self, _: Nothing) {}
}
