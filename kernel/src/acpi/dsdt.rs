//! DSDT (ACPI 6.5 section 5.2.11.1): `\_S5`, and `\_SB` with each device's AML.

use acpi_tables::aml::{Name, Package, Path, Scope};
use acpi_tables::sdt::Sdt;

use super::{guest_aml, table};
use crate::power::S5_SLEEP_TYPE;

/// Integers are 64 bits wide from revision 2 on.
const REVISION: u8 = 2;

pub(super) fn build(device_aml: &[Vec<u8>]) -> Sdt {
    // Section 7.4.2: SLP_TYP for the sleep control register, SLP_TYPb (unused), two reserved.
    let s5 = Name::new(Path::new("\\_S5_"), &Package::new(vec![&S5_SLEEP_TYPE, &S5_SLEEP_TYPE, &0u8, &0u8]));
    let mut dsdt = table(*b"DSDT", REVISION);
    dsdt.append_slice(&guest_aml(&s5));
    dsdt.append_slice(&Scope::raw(Path::new("\\_SB_"), device_aml.concat()));
    dsdt
}
