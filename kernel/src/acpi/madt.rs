//! MADT (ACPI 6.5 section 5.2.12): a local APIC per vCPU, and one IOAPIC whose interrupts start at 0.
//!
//! The table has no interrupt source overrides: a hardware-reduced guest has no ISA interrupts, and each
//! device's resources describe its interrupt.

use acpi_tables::madt::{EnabledStatus, IoApic, ProcessorLocalApic};
use acpi_tables::sdt::Sdt;

use super::{Platform, guest_aml, table};

const REVISION: u8 = 6;
/// `PCAT_COMPAT` is clear: hardware-reduced guests use no 8259.
const FLAGS: u32 = 0;
/// IOAPIC ids have had their own space since the xAPIC.
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
