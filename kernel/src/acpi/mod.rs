//! ACPI tables (ACPI 6.5): RSDP, XSDT, FADT, MADT and DSDT, hardware-reduced.
//!
//! ```text
//! RSDP ──> XSDT ──> FADT ──> DSDT: \_S5, \_SB with each device's AML
//!               └─> MADT: local APICs, IOAPIC
//! ```

mod dsdt;
mod fadt;
mod madt;

use acpi_tables::Aml;
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;

use crate::error::Error;
use crate::layout::{ACPI_TABLES, GENERATION_ID, RSDP};

/// The machine as ACPI describes it to the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Platform {
    /// Number of vCPUs; their APIC ids are 0 to `vcpus` - 1.
    pub vcpus: u8,
    /// Guest physical address of the local APICs.
    pub local_apic: u32,
    /// Guest physical address of the IOAPIC.
    pub io_apic: u32,
    /// I/O port of the sleep control register.
    pub sleep_control_port: u16,
    /// I/O port of the sleep status register.
    pub sleep_status_port: u16,
    /// I/O port of the reset register.
    pub reset_port: u16,
    /// Value that resets the machine when the guest writes it to the reset register.
    pub reset_value: u8,
    /// AML that each device contributes to `\_SB`, already encoded (see [`guest_aml`]).
    pub device_aml: Vec<Vec<u8>>,
}

const OEM_ID: [u8; 6] = *b"VOLT  ";
const OEM_TABLE_ID: [u8; 8] = *b"VOLTVMM ";
const OEM_REVISION: u32 = 1;
/// Alignment of each table.
const ALIGNMENT: usize = 16;

/// Encodes one device's AML.
#[must_use]
pub fn guest_aml(aml: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    aml.to_aml_bytes(&mut bytes);
    bytes
}

/// Builds all tables, to be written at [`RSDP`].
///
/// # Errors
/// [`Error::VcpuCount`], [`Error::AcpiTooLarge`].
pub(crate) fn build(platform: &Platform) -> Result<Vec<u8>, Error> {
    if !(1..=254).contains(&platform.vcpus) {
        return Err(Error::VcpuCount { vcpus: platform.vcpus });
    }
    let mut tables = Vec::new();
    let dsdt = append(&mut tables, dsdt::build(&platform.device_aml).as_slice());
    let fadt = append(&mut tables, &fadt::build(platform, dsdt));
    let madt = append(&mut tables, madt::build(platform).as_slice());
    let mut xsdt = table(*b"XSDT", 1);
    xsdt.append_slice([fadt, madt].map(u64::to_le_bytes).as_flattened());
    let xsdt = append(&mut tables, xsdt.as_slice());
    let mut all = guest_aml(&Rsdp::new(OEM_ID, xsdt));
    all.resize((ACPI_TABLES - RSDP) as usize, 0);
    all.append(&mut tables);
    let (length, limit) = (all.len() as u64, GENERATION_ID - RSDP);
    if length > limit { Err(Error::AcpiTooLarge { length, limit }) } else { Ok(all) }
}

/// Appends a table, and returns its future guest physical address.
fn append(tables: &mut Vec<u8>, table: &[u8]) -> u64 {
    tables.resize(tables.len().next_multiple_of(ALIGNMENT), 0);
    let address = ACPI_TABLES + tables.len() as u64;
    tables.extend_from_slice(table);
    address
}

/// Makes a system description table of only a header (ACPI 6.5 section 5.2.6).
fn table(signature: [u8; 4], revision: u8) -> Sdt {
    Sdt::new(signature, 36, revision, OEM_ID, OEM_TABLE_ID, OEM_REVISION)
}

#[cfg(test)]
mod tests;
