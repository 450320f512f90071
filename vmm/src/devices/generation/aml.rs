//! AML of the generation device. Hardware-reduced ACPI has no general-purpose events, so a Generic Event
//! Device (ACPI 6.5 section 5.6.9) turns the interrupt into notifications.

use acpi_tables::aml::{
    Device, Interrupt, Memory32Fixed, Method, Name, Notify, Package, Path, ResourceTemplate,
};
use volt_kernel::guest_aml;
use volt_kernel::layout::{GENERATION_ID, VM_CLOCK};

use crate::memory::PAGE;

/// The notification that both drivers expect: the status has changed.
const STATUS_CHANGED: u8 = 0x80;
/// Compatible id and description by which Windows and Linux find VMGENID (Microsoft, "Virtual Machine
/// Generation ID"). ACPICA compares it in upper case.
const GENERATION_COUNTER: &str = "VM_Gen_Counter";
const CLOCK: &str = "VMCLOCK";

/// Encodes the three devices for `\_SB`. The event device interrupts on `gsi`.
pub(super) fn encode(gsi: u32) -> Vec<u8> {
    [generation_id(), clock(), events(gsi)].concat()
}

fn generation_id() -> Vec<u8> {
    let [low, high] = [GENERATION_ID as u32, (GENERATION_ID >> 32) as u32];
    guest_aml(&Device::new(
        "VGEN".into(),
        vec![
            &Name::new("_HID".into(), &"VOLT0001"),
            &Name::new("_CID".into(), &GENERATION_COUNTER),
            &Name::new("_DDN".into(), &GENERATION_COUNTER),
            &Name::new("ADDR".into(), &Package::new(vec![&low, &high])),
        ],
    ))
}

fn clock() -> Vec<u8> {
    let page = Memory32Fixed::new(false, VM_CLOCK as u32, PAGE as u32);
    guest_aml(&Device::new(
        "VCLK".into(),
        vec![
            &Name::new("_HID".into(), &"AMZNC10C"),
            &Name::new("_CID".into(), &CLOCK),
            &Name::new("_DDN".into(), &CLOCK),
            &Name::new("_CRS".into(), &ResourceTemplate::new(vec![&page])),
        ],
    ))
}

fn events(gsi: u32) -> Vec<u8> {
    let [id, clock] = ["\\_SB_.VGEN", "\\_SB_.VCLK"].map(Path::new);
    // Consumer, edge-triggered, active high, exclusive.
    let interrupt = Interrupt::new(true, true, false, false, gsi);
    guest_aml(&Device::new(
        "GED_".into(),
        vec![
            &Name::new("_HID".into(), &"ACPI0013"),
            &Name::new("_CRS".into(), &ResourceTemplate::new(vec![&interrupt])),
            // The argument is the interrupt, and there is only one.
            &Method::new(
                "_EVT".into(),
                1,
                true,
                vec![&Notify::new(&id, &STATUS_CHANGED), &Notify::new(&clock, &STATUS_CHANGED)],
            ),
        ],
    ))
}
