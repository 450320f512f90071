//! AML of the generation device: its two pages, and the event device that notifies their drivers.

use acpi_tables::aml::{Device, Memory32Fixed, Name, Package, ResourceTemplate};
use volt_kernel::guest_aml;
use volt_kernel::layout::{GENERATION_ID, VM_CLOCK};

use crate::devices::event_device;
use crate::memory::PAGE;

/// Compatible id and description by which Windows and Linux find VMGENID (Microsoft, "Virtual Machine
/// Generation ID"). ACPICA compares it in upper case.
const GENERATION_COUNTER: &str = "VM_Gen_Counter";
const CLOCK: &str = "VMCLOCK";

/// Encodes the three devices for `\_SB`. The event device interrupts on `gsi`.
pub(super) fn encode(gsi: u32) -> Vec<u8> {
    [generation_id(), clock(), event_device::encode("GED_", gsi, &["\\_SB_.VGEN", "\\_SB_.VCLK"])].concat()
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
