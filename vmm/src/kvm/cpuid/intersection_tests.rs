//! Tests of the common denominator of hosts.

use super::*;
use crate::config::CpuTemplate;
use crate::kvm::cpuid::dump::dump;
use crate::kvm::cpuid::{missing, restorable, template};

fn leaf(function: u32, index: u32) -> CpuidEntry {
    CpuidEntry { function, index, ..Default::default() }
}

fn vendor_leaf(name: &[u8; 12], last: u32) -> CpuidEntry {
    let four = |at: usize| u32::from_le_bytes(name[at..at + 4].try_into().unwrap());
    CpuidEntry { eax: last, ebx: four(0), edx: four(4), ecx: four(8), ..leaf(0, 0) }
}

/// An older and a newer host. Each has a feature that the other lacks.
fn hosts() -> [Vec<CpuidEntry>; 2] {
    let older = vec![
        vendor_leaf(b"GenuineIntel", 0xd),
        CpuidEntry { eax: 0x0005_0654, ecx: 1 << 28, edx: 1, ..leaf(1, 0) },
        CpuidEntry { flags: 1, ebx: 1 << 16 | 1 << 11, ecx: 1 << 3, ..leaf(7, 0) },
        CpuidEntry { eax: 0x0730_0402, ebx: 1, edx: 3, ..leaf(0xa, 0) },
        CpuidEntry { flags: 1, eax: 1 << 9 | 0b1110_0111, ecx: 2696, ..leaf(0xd, 0) },
        CpuidEntry { flags: 1, eax: 256, ebx: 576, ..leaf(0xd, 2) },
        CpuidEntry { flags: 1, eax: 8, ebx: 2688, ..leaf(0xd, 9) },
        CpuidEntry { eax: 0x302e, ..leaf(0x8000_0008, 0) },
    ];
    let newer = vec![
        vendor_leaf(b"GenuineIntel", 0x20),
        CpuidEntry { eax: 0x0006_06a6, ecx: 1 << 28 | 1 << 12, edx: 1, ..leaf(1, 0) },
        CpuidEntry { flags: 1, ebx: 1 << 16 | 1 << 29, ecx: 1 << 3, ..leaf(7, 0) },
        CpuidEntry { flags: 1, eax: 1 << 4, ..leaf(7, 1) },
        CpuidEntry { eax: 0x0830_0805, ebx: 2, edx: 4, ..leaf(0xa, 0) },
        CpuidEntry { flags: 1, eax: 1 << 9 | 0b1110_0111, ecx: 2696, ..leaf(0xd, 0) },
        CpuidEntry { flags: 1, eax: 256, ebx: 576, ..leaf(0xd, 2) },
        CpuidEntry { flags: 1, eax: 8, ebx: 2688, ..leaf(0xd, 9) },
        CpuidEntry { eax: 0x3934, ..leaf(0x8000_0008, 0) },
    ];
    [older, newer]
}

fn of(hosts: &[Vec<CpuidEntry>]) -> Result<CpuTemplate, String> {
    let dumps: Vec<_> = hosts.iter().map(|host| dump(host)).collect();
    let cpuid = intersection(&dumps.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
    Ok(CpuTemplate { cpuid, ..Default::default() })
}

#[test]
fn guest_under_the_intersection_moves_both_ways() {
    let hosts = hosts();
    let common = of(&hosts).unwrap();
    let guests = hosts.each_ref().map(|host| {
        assert_eq!(template::lacking(&common, host), [] as [&str; 0]);
        restorable(&template::masked(&common, host))
    });
    assert_eq!(missing(&guests[0], &hosts[1]), [] as [&str; 0]);
    assert_eq!(missing(&guests[1], &hosts[0]), [] as [&str; 0]);
    assert_ne!(missing(&hosts[1], &hosts[0]), [] as [&str; 0]);
    assert_ne!(missing(&hosts[0], &hosts[1]), [] as [&str; 0]);
}

#[test]
fn intersection_has_all_that_the_hosts_share() {
    let common = of(&hosts()).unwrap().cpuid;
    let find = |key| common.iter().find(|mask| mask.key() == key).unwrap();
    assert_eq!((find((7, 0)).ebx.fixed(), find((7, 0)).ebx.value()), (0xffff_ffff, 1 << 16));
    assert_eq!(find((7, 1)).eax.fixed(), 0xffff_ffff, "the older host lacks the leaf");
    assert_eq!(find((1, 0)).ecx.value(), 1 << 28);
    assert_eq!(find((0, 0)).eax.value(), 0xd);
    assert_eq!(find((0xa, 0)).eax.value(), 0x0730_0402);
    assert_eq!(find((0xa, 0)).ebx.value(), 0b11, "an event that either host lacks");
    assert_eq!(find((0xa, 0)).edx.value() & 0x1f, 3);
    assert_eq!(find((0x8000_0008, 0)).eax.value(), 0x302e);
    // The signatures end in 0100 and 0110. A bit that is no feature stays open where they differ.
    assert_eq!(find((1, 0)).eax.fixed() & 0b1111, 0b1101);
    assert_eq!(find((1, 0)).eax.value() & 0b1111, 0b0100);
}

#[test]
fn one_host_alone_gives_its_dump() {
    let [older, _] = hosts();
    assert_eq!(of(std::slice::from_ref(&older)).unwrap().cpuid, dump(&older));
    assert_eq!(of(&[older.clone(), older.clone()]).unwrap().cpuid, dump(&older));
}

#[test]
fn protection_keys_at_another_place_are_hidden() {
    let [older, mut newer] = hosts();
    newer.iter_mut().find(|entry| (entry.function, entry.index) == (0xd, 9)).unwrap().ebx = 832;
    let common = of(&[older.clone(), newer.clone()]).unwrap();
    for (here, there) in [(&older, &newer), (&newer, &older)] {
        let guest = restorable(&template::masked(&common, here));
        assert_eq!(missing(&guest, there), [] as [&str; 0]);
    }
    let [older, mut newer] = hosts();
    newer.iter_mut().find(|entry| (entry.function, entry.index) == (0xd, 2)).unwrap().ebx = 832;
    assert!(of(&[older, newer]).unwrap_err().contains("component 2"));
}

#[test]
fn dumps_that_do_not_go_together_are_refused() {
    let [older, newer] = hosts();
    let mut amd = newer.clone();
    amd[0] = vendor_leaf(b"AuthenticAMD", 0x10);
    let error = of(&[older.clone(), newer.clone(), amd]).unwrap_err();
    assert!(error.contains("number 3 of AuthenticAMD"), "{error}");
    let error = of(&[older, newer[1..].to_vec()]).unwrap_err();
    assert!(error.contains("number 2 has no CPUID leaf 0x0"), "{error}");
}
