//! Tests that walk the tables as a guest does.

use acpi_tables::aml::{Device, EISAName, Name};

use super::*;
use crate::testing::platform;

/// The tables of a platform: guest physical memory from [`RSDP`] on.
struct Tables(Vec<u8>);

impl Tables {
    fn of(platform: &Platform) -> Self {
        Self(build(platform).unwrap())
    }

    fn bytes(&self, address: u64, length: usize) -> &[u8] {
        &self.0[(address - RSDP) as usize..][..length]
    }

    fn pointer(bytes: &[u8]) -> u64 {
        u64::from_le_bytes(bytes.try_into().unwrap())
    }

    /// Returns the table at `address` after a check of its checksum.
    fn table(&self, address: u64, signature: &[u8]) -> &[u8] {
        let length = u32::from_le_bytes(self.bytes(address + 4, 4).try_into().unwrap());
        let table = self.bytes(address, length as usize);
        assert_eq!(&table[..4], signature);
        assert_eq!(sum(table), 0, "checksum of {}", signature.escape_ascii());
        table
    }

    /// Returns FADT, MADT and DSDT.
    fn walk(&self) -> [&[u8]; 3] {
        let rsdp = self.bytes(RSDP, 36);
        assert_eq!(&rsdp[..8], b"RSD PTR ");
        assert_eq!([sum(&rsdp[..20]), sum(rsdp)], [0, 0]);
        let xsdt = self.table(Self::pointer(&rsdp[24..32]), b"XSDT");
        let fadt = self.table(Self::pointer(&xsdt[36..44]), b"FACP");
        let madt = self.table(Self::pointer(&xsdt[44..52]), b"APIC");
        [fadt, madt, self.table(Self::pointer(&fadt[140..148]), b"DSDT")]
    }
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}

#[test]
fn the_fadt_is_hardware_reduced_and_names_the_power_registers() {
    let tables = Tables::of(&platform());
    let [fadt, ..] = tables.walk();
    assert_eq!((fadt.len(), fadt[8], fadt[131]), (276, 6, 5), "length and revision 6.5");
    let flags = u32::from_le_bytes(fadt[112..116].try_into().unwrap());
    assert_eq!(flags & (1 << 20 | 1 << 10), 1 << 20 | 1 << 10, "HW_REDUCED_ACPI, RESET_REG_SUP");
    assert_eq!(fadt[109..111], [0x24, 0], "no VGA, no CMOS RTC, no 8042");
    assert_eq!(fadt[116..129], [1, 8, 0, 1, 0x02, 6, 0, 0, 0, 0, 0, 0, 1], "reset register and value");
    assert_eq!(fadt[244..256], [1, 8, 0, 1, 0x00, 6, 0, 0, 0, 0, 0, 0], "sleep control");
    assert_eq!(fadt[256..268], [1, 8, 0, 1, 0x01, 6, 0, 0, 0, 0, 0, 0], "sleep status");
}

#[test]
fn the_madt_has_every_vcpu_and_the_ioapic() {
    for vcpus in [1, 2, 32, 254] {
        let tables = Tables::of(&Platform { vcpus, ..platform() });
        let [_, madt, _] = tables.walk();
        assert_eq!(madt[36..44], [0, 0, 0xe0, 0xfe, 0, 0, 0, 0], "local APIC address, no PC-AT interrupts");
        let (apics, io_apic) = madt[44..].split_at(8 * usize::from(vcpus));
        for (id, apic) in (0u8..).zip(apics.chunks(8)) {
            assert_eq!(apic, [0, 8, id, id, 1, 0, 0, 0]);
        }
        assert_eq!(io_apic, [1, 12, 0, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0]);
    }
}

#[test]
fn the_dsdt_has_s5_and_each_devices_aml() {
    let hid = Name::new("_HID".into(), &EISAName::new("PNP0501"));
    let devices = ["COM1", "COM2"].map(|name| guest_aml(&Device::new(name.into(), vec![&hid])));
    let tables = Tables::of(&Platform { device_aml: devices.to_vec(), ..platform() });
    let [.., dsdt] = tables.walk();
    assert_eq!(dsdt[36..52], *b"\x08\\_S5_\x12\x08\x04\x0a\x05\x0a\x05\x00\x00\x10");
    let position = |aml: &[u8]| dsdt.windows(aml.len()).position(|window| window == aml).unwrap();
    assert!(position(b"\\_SB_") < position(&devices[0]));
    assert_eq!(position(&devices[0]) + devices[0].len(), position(&devices[1]));
    assert_eq!(position(&devices[1]) + devices[1].len(), dsdt.len());
}

#[test]
fn platform_beyond_acpis_limits_is_refused() {
    let refusal = |platform| build(&platform).unwrap_err().to_string();
    assert_eq!(refusal(Platform { vcpus: 0, ..platform() }), "vcpus is 0; ACPI describes 1 to 254");
    assert_eq!(refusal(Platform { vcpus: 255, ..platform() }), "vcpus is 255; ACPI describes 1 to 254");
    let too_large = refusal(Platform { device_aml: vec![vec![0; 1 << 17]], ..platform() });
    assert!(too_large.ends_with("122880 fit below 1 MiB"), "{too_large}");
}
