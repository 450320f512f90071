//! Numbers of devices.

use super::Refusal;
use crate::tree::Device;

/// The device of a number that [`encoded`] gives.
pub(super) fn decoded(number: u32) -> Device {
    Device { major: number >> 8 & 0xfff, minor: number & 0xff | number >> 12 & 0xf_ff00 }
}

/// A device's number as Linux encodes it on disks (`new_encode_dev`).
pub(super) fn encoded(Device { major, minor }: Device) -> Result<u32, Refusal> {
    let fits = major < 1 << 12 && minor < 1 << 20;
    let encoded = minor & 0xff | major << 8 | (minor & !0xff) << 12;
    if fits { Ok(encoded) } else { Err(Refusal::Device(major, minor)) }
}
