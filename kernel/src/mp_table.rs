//! The MP table (Intel MultiProcessor Specification 1.4, chapter 4): processors, the IOAPIC and its pins.
//!
//! It serves kernels without ACPI. A kernel with ACPI prefers the MADT.
//!
//! ```text
//! 0x9fc00  floating pointer ──> configuration table:
//!                               header, processors, ISA bus, IOAPIC, 24 pins, LINT0 and LINT1
//! ```

use crate::acpi::Platform;
use crate::layout::{HIMEM, MP_TABLE};

/// The kernel searches only the last KiB of base memory, which holds no more entries.
const MAX_VCPUS: u8 = 32;
const SPACE: usize = 1024;
const _: () = assert!(MP_TABLE + SPACE as u64 <= HIMEM);

/// Version 1.4.
const REVISION: u8 = 4;
/// Length of the floating pointer in bytes. Its length field counts units of 16.
const POINTER_LEN: usize = 16;
const HEADER_LEN: usize = 44;

// Kinds of entries.
const PROCESSOR: u8 = 0;
const BUS: u8 = 1;
const IO_APIC: u8 = 2;
const INTERRUPT: u8 = 3;
const LOCAL_INTERRUPT: u8 = 4;

/// The version registers of KVM's local APIC and IOAPIC.
const LOCAL_APIC_VERSION: u8 = 0x14;
const IO_APIC_VERSION: u8 = 0x11;
const ENABLED: u8 = 1;
const BOOT_PROCESSOR: u8 = 2;
/// Family 6, a placeholder: kernels read CPUID.
const SIGNATURE: u32 = 0x600;
/// FPU and APIC.
const FEATURES: u32 = 1 << 9 | 1;

const ISA: u8 = 0;
const PINS: u8 = 24;
// Types of interrupts.
const VECTORED: u8 = 0;
const NMI: u8 = 1;
const EXTERNAL: u8 = 3;
const EVERY_LOCAL_APIC: u8 = 0xff;

/// Builds the floating pointer and the table, to be written at [`MP_TABLE`]. Returns `None` if they do not
/// fit.
pub(crate) fn build(platform: &Platform) -> Option<Vec<u8>> {
    if platform.vcpus > MAX_VCPUS {
        return None;
    }
    let entries = entries(platform);
    let table = table(platform.local_apic, &entries);
    let mut all = Vec::with_capacity(SPACE);
    all.extend_from_slice(b"_MP_");
    all.extend_from_slice(&(MP_TABLE as u32 + POINTER_LEN as u32).to_le_bytes());
    // Length, revision, checksum, and features: a table follows; interrupts start in virtual wire mode.
    all.extend_from_slice(&[1, REVISION, 0, 0, 0, 0, 0, 0]);
    all[10] = checksum(&all);
    all.extend_from_slice(&table);
    (all.len() <= SPACE).then_some(all)
}

fn entries(platform: &Platform) -> Vec<Vec<u8>> {
    // Unlike in ACPI, IOAPICs and local APICs share one space of ids.
    let io_apic_id = platform.vcpus;
    let processor = |id: u8| {
        let flags = if id == 0 { ENABLED | BOOT_PROCESSOR } else { ENABLED };
        let mut entry = vec![PROCESSOR, id, LOCAL_APIC_VERSION, flags];
        entry.extend_from_slice(&SIGNATURE.to_le_bytes());
        entry.extend_from_slice(&FEATURES.to_le_bytes());
        entry.extend_from_slice(&[0; 8]);
        entry
    };
    let bus = [&[BUS, ISA][..], b"ISA   "].concat();
    let registers = platform.io_apic.to_le_bytes();
    let io_apic = [&[IO_APIC, io_apic_id, IO_APIC_VERSION, ENABLED][..], &registers].concat();
    // Flags 0 mean the ISA bus's polarity and trigger mode: active high, edge.
    let pin = |pin: u8| vec![INTERRUPT, VECTORED, 0, 0, ISA, pin, io_apic_id, pin];
    let local = |kind, local_apic, input| vec![LOCAL_INTERRUPT, kind, 0, 0, ISA, 0, local_apic, input];
    (0..platform.vcpus)
        .map(processor)
        .chain([bus, io_apic])
        .chain((0..PINS).map(pin))
        .chain([local(EXTERNAL, 0, 0), local(NMI, EVERY_LOCAL_APIC, 1)])
        .collect()
}

fn table(local_apic: u32, entries: &[Vec<u8>]) -> Vec<u8> {
    let length = HEADER_LEN + entries.iter().map(Vec::len).sum::<usize>();
    let mut table = Vec::with_capacity(length);
    table.extend_from_slice(b"PCMP");
    table.extend_from_slice(&(length as u16).to_le_bytes());
    table.extend_from_slice(&[REVISION, 0]);
    table.extend_from_slice(b"VOLT    VOLTVMM     ");
    table.extend_from_slice(&[0; 6]); // no OEM table
    table.extend_from_slice(&(entries.len() as u16).to_le_bytes());
    table.extend_from_slice(&local_apic.to_le_bytes());
    table.extend_from_slice(&[0; 4]); // no extended entries
    table.extend(entries.iter().flatten());
    table[7] = checksum(&table);
    table
}

/// Returns the byte that makes the sum of all bytes 0.
fn checksum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_sub(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout;
    use crate::testing::platform;

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
    }

    /// Splits a table into its entries, as a kernel does, by the length of each type.
    fn walk(table: &[u8]) -> Vec<&[u8]> {
        let mut rest = &table[HEADER_LEN..];
        let mut found = Vec::new();
        while let Some(&kind) = rest.first() {
            let (entry, after) = rest.split_at(if kind == 0 { 20 } else { 8 });
            found.push(entry);
            rest = after;
        }
        found
    }

    #[test]
    fn table_lists_every_processor_and_pin() {
        for vcpus in [1, 2, 32] {
            let all = build(&Platform { vcpus, ..platform() }).unwrap();
            assert!(all.len() <= 1024 && MP_TABLE.is_multiple_of(16));
            let (pointer, table) = all.split_at(16);
            assert_eq!((&pointer[..4], sum(pointer), pointer[8], pointer[9]), (&b"_MP_"[..], 0, 1, 4));
            assert_eq!(pointer[4..8], (MP_TABLE as u32 + 16).to_le_bytes());
            assert_eq!(pointer[11..], [0; 5], "a table and no default configuration; no IMCR");
            assert_eq!((&table[..4], sum(table), table[6]), (&b"PCMP"[..], 0, 4));
            assert_eq!(usize::from(u16::from_le_bytes([table[4], table[5]])), table.len());
            assert_eq!(table[36..40], (layout::LOCAL_APIC as u32).to_le_bytes());
            let entries = walk(table);
            assert_eq!(usize::from(u16::from_le_bytes([table[34], table[35]])), entries.len());
            let of = |kind: u8| entries.iter().filter(move |entry| entry[0] == kind).collect::<Vec<_>>();
            let processors: Vec<_> = of(0).iter().map(|entry| (entry[1], entry[3])).collect();
            let expected = (0..vcpus).map(|id| (id, if id == 0 { 3 } else { 1 }));
            assert_eq!(processors, expected.collect::<Vec<_>>());
            assert_eq!(of(1), [&&[1, 0, b'I', b'S', b'A', b' ', b' ', b' '][..]]);
            let [io_apic] = of(2)[..] else { panic!() };
            assert_eq!((io_apic[1], io_apic[3]), (vcpus, 1));
            assert_eq!(io_apic[4..], (layout::IO_APIC as u32).to_le_bytes());
            let pins: Vec<_> = of(3).iter().map(|entry| (entry[1], entry[5], entry[6], entry[7])).collect();
            assert_eq!(pins, (0..24).map(|pin| (0, pin, vcpus, pin)).collect::<Vec<_>>());
            let local: Vec<_> = of(4).iter().map(|entry| (entry[1], entry[6], entry[7])).collect();
            assert_eq!(local, [(3, 0, 0), (1, 0xff, 1)]);
        }
    }

    #[test]
    fn platform_of_33_vcpus_has_no_table() {
        assert_eq!(build(&Platform { vcpus: 33, ..platform() }), None);
    }
}
