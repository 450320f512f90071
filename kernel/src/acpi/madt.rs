//! MADT (ACPI 6.5 section 5.2.12): a local APIC per vCPU and one IOAPIC that takes interrupts from 0 on.
//!
//! There are no interrupt source overrides: a hardware-reduced guest has no ISA interrupts, and each device's
//! resources say how its interrupt is triggered.

use acpi_tables::madt::{EnabledStatus, IoApic, ProcessorLocalApic};
use acpi_tables::sdt::Sdt;

use super::{Platform, guest_aml, table};

const REVISION: u8 = 6;
/// `PCAT_COMPAT` cleared: hardware-reduced guests use no 8259.
const FLAGS: u32 = 0;
/// IOAPIC ids are a space of their own since the xAPIC.
const IO_APIC_ID: u8 = 0;

pub(super) fn build(platform: &Platform) -> Sdt {
    let mut madt = table(*b"APIC", REVISION);
    madt.append_slice(&platform.local_apic.to_le_bytes());
    madt.append_slice(&FLAGS.to_le_bytes());
    for id in 0..platform.vcpus {
        madt.append_slice(&guest_aml(&ProcessorLocalApic::new(id, id, EnabledStatus::Enabled)));
    }
    madt.append_slice(&guest_aml(&IoApic::new(IO_APIC_ID, platform.io_apic, 0)));
    madt
}
