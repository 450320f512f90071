//! AML of a Generic Event Device (ACPI 6.5 section 5.6.9): hardware-reduced ACPI has no general-purpose
//! events, so this device turns an interrupt into notifications.

use volt_kernel::acpi_tables::aml::{Device, Interrupt, Method, Name, Notify, Path, ResourceTemplate};
use volt_kernel::guest_aml;

/// The notification that drivers of all devices here expect: of a pressed power button, or of a changed
/// status.
const NOTIFICATION: u8 = 0x80;

/// Encodes a device of this name, of four characters, for `\_SB`. An edge of `gsi` notifies the devices at
/// these paths.
pub(super) fn encode(name: &'static str, gsi: u32, notified: &[&str]) -> Vec<u8> {
    // Consumer, edge-triggered, active high, exclusive.
    let interrupt = Interrupt::new(true, true, false, false, gsi);
    let paths: Vec<Path> = notified.iter().map(|path| Path::new(path)).collect();
    let notifications: Vec<_> = paths.iter().map(|path| Notify::new(path, &NOTIFICATION)).collect();
    guest_aml(&Device::new(
        name.into(),
        vec![
            &Name::new("_HID".into(), &"ACPI0013"),
            // Devices with one _HID differ in this.
            &Name::new("_UID".into(), &name),
            &Name::new("_CRS".into(), &ResourceTemplate::new(vec![&interrupt])),
            // The argument is the interrupt, and there is only one.
            &Method::new("_EVT".into(), 1, true, notifications.iter().map(|notify| notify as _).collect()),
        ],
    ))
}
