//! FADT (ACPI 6.5 section 5.2.9) of a hardware-reduced machine: power goes through the sleep and reset
//! registers, and the guest has no PC hardware to probe.

use acpi_tables::fadt::{FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};

use super::{OEM_ID, OEM_REVISION, OEM_TABLE_ID, Platform, guest_aml};

// Set flags of `IAPC_BOOT_ARCH` (table 5.11). `LEGACY_DEVICES`, `8042` and `MSI_NOT_SUPPORTED` are clear.
// Linux reboots through an 8042 without its flag.
const VGA_NOT_PRESENT: u16 = 1 << 2;
const CMOS_RTC_NOT_PRESENT: u16 = 1 << 5;

const HYPERVISOR: [u8; 8] = *b"VOLTVMM\0";

pub(super) fn build(platform: &Platform, dsdt: u64) -> Vec<u8> {
    let mut fadt = FADTBuilder::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION)
        .dsdt_64(dsdt)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::ResetRegSup)
        .flag(Flags::Wbinvd)
        .flag(Flags::PwrButton) // means no fixed-hardware button
        .flag(Flags::SlpButton)
        .flag(Flags::FixRtc) // means no fixed-hardware RTC wake
        .flag(Flags::Headless);
    fadt.iapc_boot_arch = (VGA_NOT_PRESENT | CMOS_RTC_NOT_PRESENT).into();
    fadt.reset_reg = port(platform.reset_port);
    fadt.reset_value = platform.reset_value;
    fadt.sleep_control_reg = port(platform.sleep_control_port);
    fadt.sleep_status_reg = port(platform.sleep_status_port);
    fadt.hypervisor_vendor_identity = u64::from_le_bytes(HYPERVISOR).into();
    guest_aml(&fadt.finalize())
}

/// An 8-bit register in I/O space.
fn port(port: u16) -> GAS {
    GAS::new(AddressSpace::SystemIo, 8, 0, AccessSize::ByteAccess, port.into())
}
