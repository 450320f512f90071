//! The common denominator of dumps of CPUID: features that all hosts have, and the smallest of each number.

use std::collections::BTreeSet;

use super::CpuidEntry;
use super::features::CpuidRegister::{self, Eax, Ebx, Ecx, Edx};
use super::features::{feature_bits, level_fields};
use super::template::{masks, vendor};
use super::xsave_layout::moved_components;
use crate::config::cpu::{LeafMask, Mask32, Number};

/// Numbers besides the levels of features that the poorest host decides: leaf, register, bits.
const SMALLEST: &[(u32, CpuidRegister, u32)] = &[
    // The last basic leaf, and the last ones of the other ranges.
    (0, Eax, u32::MAX),
    (0x4000_0000, Eax, u32::MAX),
    (0x8000_0000, Eax, u32::MAX),
    // The number of events of Intel's counters that EBX tells.
    (0xa, Eax, 0xff << 24),
    // Bits of a physical, a linear and a guest physical address.
    (0x8000_0008, Eax, 0xff),
    (0x8000_0008, Eax, 0xff << 8),
    (0x8000_0008, Eax, 0xff << 16),
];

/// The component of XCR0 with protection keys, and their feature bit: leaf, register, bit. Its place depends
/// on the components that a CPU has before it.
const KEYS: (u32, (u32, CpuidRegister, u32)) = (9, (7, Ecx, 1 << 3));

/// Returns masks for the features that all of the dumped hosts have. Bits that are no feature, and that
/// differ, stay open.
///
/// # Errors
/// The dumps do not go together, in words.
pub fn intersection(dumps: &[&[LeafMask]]) -> Result<Vec<LeafMask>, String> {
    let hosts: Vec<Vec<CpuidEntry>> = dumps.iter().map(|dump| dump.iter().map(entry).collect()).collect();
    let Some((first, others)) = hosts.split_first() else { return Ok(Vec::new()) };
    for (number, host) in (1..).zip(&hosts) {
        let is_dump = host.iter().any(|entry| entry.function == 0);
        if !is_dump {
            return Err(format!("number {number} has no CPUID leaf 0x0, so it is no dump of a host"));
        }
    }
    if let Some((number, other)) = (2..).zip(others).find(|(_, other)| vendor(other) != vendor(first)) {
        let (one, other) = (vendor(first), vendor(other));
        return Err(format!("number 1 is of {one}, and number {number} of {other}; give CPUs of one vendor"));
    }
    let keys: BTreeSet<_> = dumps.iter().flat_map(|dump| dump.iter().map(LeafMask::key)).collect();
    let mut common: Vec<_> = keys.into_iter().map(|key| common_leaf(key, dumps)).collect();
    for other in others {
        for component in moved_components(first, other) {
            hide_component(component, &mut common)?;
        }
    }
    Ok(common)
}

/// The leaf as a host with these values has it. Open bits count as 0.
fn entry(mask: &LeafMask) -> CpuidEntry {
    let mut entry =
        CpuidEntry { function: mask.leaf.0, index: mask.subleaf.0, flags: mask.flags, ..Default::default() };
    masks(mask).into_iter().for_each(|(register, mask)| *register.of_mut(&mut entry) = mask.value() as u32);
    entry
}

fn common_leaf((function, index): (u32, u32), dumps: &[&[LeafMask]]) -> LeafMask {
    let of_host = |dump: &[LeafMask]| dump.iter().find(|mask| mask.key() == (function, index)).copied();
    let leaves: Vec<Option<LeafMask>> = dumps.iter().map(|dump| of_host(dump)).collect();
    let register = |register: CpuidRegister| {
        let of_leaf = |leaf: &Option<LeafMask>| match leaf {
            // A leaf that a host lacks reads as zeros.
            None => Mask32::new(u64::MAX, 0),
            Some(leaf) => masks(leaf)[register as usize].1,
        };
        common_register(function, index, register, &leaves.iter().map(of_leaf).collect::<Vec<_>>())
    };
    LeafMask {
        leaf: Number(function),
        subleaf: Number(index),
        flags: leaves.iter().flatten().fold(0, |flags, leaf| flags | leaf.flags),
        eax: register(Eax),
        ebx: register(Ebx),
        ecx: register(Ecx),
        edx: register(Edx),
    }
}

fn common_register(function: u32, index: u32, register: CpuidRegister, hosts: &[Mask32]) -> Mask32 {
    let all = |bits: fn(&Mask32) -> u64| hosts.iter().map(bits).fold(u64::MAX, |all, bits| all & bits);
    let any = |bits: fn(&Mask32) -> u64| hosts.iter().map(bits).fold(0, |any, bits| any | bits);
    let ones = all(|mask| mask.value());
    let zeros = all(|mask| mask.fixed() & !mask.value());
    let any_one = any(|mask| mask.value());
    let any_zero = any(|mask| mask.fixed() & !mask.value());
    // Equal everywhere.
    let (mut fixed, mut value) = (ones | zeros, ones);
    // A bit of EBX of leaf 0xA marks an event as missing.
    let marks_missing = (function, register) == (0xa, Ebx);
    let features = u64::from(feature_bits(function, index, register));
    if marks_missing {
        (fixed, value) = (any_one | zeros, any_one);
    } else {
        fixed |= any_zero & features;
    }
    let smallest =
        SMALLEST.iter().filter(|number| (number.0, number.1) == (function, register) && index == 0);
    let numbers = smallest.map(|number| number.2).chain(level_fields(function, index, register));
    for bits in numbers.map(u64::from) {
        fixed &= !bits;
        value &= !bits;
        if all(|mask| mask.fixed()) & bits == bits {
            fixed |= bits;
            value |= hosts.iter().map(|mask| mask.value() & bits).min().unwrap_or(0);
        }
    }
    Mask32::new(fixed, value)
}

/// Hides a component whose place differs between the hosts.
fn hide_component(component: u32, leaves: &mut [LeafMask]) -> Result<(), String> {
    let (keys, (leaf, register, bit)) = KEYS;
    if component != keys {
        return Err(format!(
            "XSAVE component {component} lies elsewhere on another host, and cannot be hidden"
        ));
    }
    clear((0xd, Eax, 1 << component), leaves);
    clear((leaf, register, bit), leaves);
    Ok(())
}

fn clear((leaf, register, bit): (u32, CpuidRegister, u32), leaves: &mut [LeafMask]) {
    for mask in leaves.iter_mut().filter(|mask| mask.key() == (leaf, 0)) {
        let of_register = match register {
            Eax => &mut mask.eax,
            Ebx => &mut mask.ebx,
            Ecx => &mut mask.ecx,
            Edx => &mut mask.edx,
        };
        let bit = u64::from(bit);
        *of_register = Mask32::new(of_register.fixed() | bit, of_register.value() & !bit);
    }
}

#[cfg(test)]
#[path = "intersection_tests.rs"]
mod tests;
