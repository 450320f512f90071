//! The leaves that a host offers, as masks that fix each bit. Bits that differ between vCPUs stay open.

use super::CpuidEntry;
use super::features::CpuidRegister::{self, Eax, Ebx, Ecx};
use super::features::no_features;
use crate::config::cpu::{LeafMask, Mask32, Number};

/// Leaves of the topology, which each vCPU gets anew: extended topology, and those of AMD's.
const TOPOLOGY: [u32; 4] = [0xb, 0x1f, 0x8000_001e, 0x8000_0026];

/// Bits that [`super::for_vcpu`] or KVM sets for each vCPU: leaf, register, bits.
const OF_A_VCPU: &[(u32, CpuidRegister, u32)] = &[
    // APIC id and number of processors.
    (1, Ebx, 0xffff_0000),
    // Processors that share a cache.
    (4, Eax, 0xffff_c000),
    (0x8000_001d, Eax, 0x03ff_c000),
    (0x8000_0008, Ecx, 0xf0ff),
    // Size of the XSAVE area with the components that are enabled.
    (0xd, Ebx, u32::MAX),
];

/// Returns masks that fix each bit of these leaves.
#[must_use]
pub fn dump(offered: &[CpuidEntry]) -> Vec<LeafMask> {
    let entries = offered.iter().filter(|entry| !TOPOLOGY.contains(&entry.function));
    let masks = entries.map(|entry| {
        let CpuidEntry { function, index, flags, eax, ebx, ecx, edx } = *entry;
        let mask = |register, value: u32| Mask32::new((!open_bits(entry, register)).into(), value.into());
        LeafMask {
            leaf: Number(function),
            subleaf: Number(index),
            flags,
            eax: mask(Eax, eax),
            ebx: mask(Ebx, ebx),
            ecx: mask(Ecx, ecx),
            edx: mask(CpuidRegister::Edx, edx),
        }
    });
    let mut masks: Vec<_> = masks.collect();
    masks.sort_unstable_by_key(LeafMask::key);
    masks
}

fn open_bits(entry: &CpuidEntry, register: CpuidRegister) -> u32 {
    // Subleaves of a component have its size and offset.
    let is_component = (entry.function, entry.index >= 2) == (0xd, true);
    let of_a_vcpu =
        OF_A_VCPU.iter().filter(|bits| !is_component && (bits.0, bits.1) == (entry.function, register));
    of_a_vcpu.fold(no_features(entry.function, entry.index, register), |open, (_, _, bits)| open | bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CpuTemplate;
    use crate::kvm::cpuid::{Topology, for_vcpu, template};

    #[test]
    fn dump_changes_nothing_on_its_host_and_leaves_vcpus_their_bits() {
        let leaf = |function, index| CpuidEntry { function, index, ..Default::default() };
        let host = [
            CpuidEntry { ebx: 7 << 24 | 0x0800, ecx: 1 << 27 | 1 << 28, edx: 1, ..leaf(1, 0) },
            CpuidEntry { eax: 0x121, ebx: 3, ..leaf(4, 0) },
            CpuidEntry { flags: 1, ebx: 0x21, ..leaf(7, 0) },
            CpuidEntry { ebx: 1, ..leaf(0xb, 0) },
            CpuidEntry { eax: 7, ebx: 832, ecx: 832, ..leaf(0xd, 0) },
            CpuidEntry { eax: 256, ebx: 576, ..leaf(0xd, 2) },
        ];
        let cpuid = dump(&host);
        assert_eq!(cpuid.iter().map(|mask| mask.leaf.0).collect::<Vec<_>>(), [1, 4, 7, 0xd, 0xd]);
        assert_eq!(cpuid[0].ebx.fixed(), 0xffff);
        assert_eq!(cpuid[0].ecx.fixed() >> 27 & 1, 0, "OSXSAVE follows CR4");
        assert_eq!((cpuid[3].ebx.fixed(), cpuid[4].ebx.value()), (0, 576));
        let dumped = CpuTemplate { cpuid, ..Default::default() };
        assert_eq!(template::lacking(&dumped, &host), [] as [&str; 0]);
        let pair = Topology { vcpus: 2, smt: false };
        for id in 0..2 {
            assert_eq!(for_vcpu(&template::masked(&dumped, &host), id, pair), for_vcpu(&host, id, pair));
        }
    }
}
