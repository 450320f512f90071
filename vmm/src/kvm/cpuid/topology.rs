//! The place of a vCPU in the topology that its CPUID leaves tell: one package, whose cores have one or two
//! threads. APIC ids are vCPU numbers, so the threads of a core are neighbours.

use kvm_bindings::KVM_CPUID_FLAG_SIGNIFCANT_INDEX;

use super::CpuidEntry;

const HTT: u32 = 1 << 28;
const CMP_LEGACY: u32 = 1 << 1;

/// The vCPUs of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Number of vCPUs.
    pub vcpus: u8,
    /// Whether each two of them are threads of one core. A lone vCPU is a core.
    pub smt: bool,
}

impl Topology {
    fn threads_per_core(self) -> u32 {
        if self.smt && self.vcpus > 1 { 2 } else { 1 }
    }
}

/// Returns the leaves for vCPU `id`.
#[must_use]
pub fn for_vcpu(supported: &[CpuidEntry], id: u8, topology: Topology) -> Vec<CpuidEntry> {
    let (id, count, threads) = (u32::from(id), u32::from(topology.vcpus), topology.threads_per_core());
    let id_bits = count.next_power_of_two().trailing_zeros();
    let mut entries: Vec<_> =
        supported.iter().filter(|e| !matches!(e.function, 0xb | 0x1f)).copied().collect();
    for entry in &mut entries {
        match (entry.function, entry.index) {
            (1, _) => {
                entry.ebx = entry.ebx & 0xffff | id << 24 | count << 16;
                entry.edx = if count > 1 { entry.edx | HTT } else { entry.edx & !HTT };
            }
            // Cores in the package, and threads that share each cache.
            (4, _) if entry.eax & 0x1f != 0 => {
                let cores = (count / threads - 1).min(63);
                entry.eax = entry.eax & 0x3fff | cores << 26 | sharing(entry.eax, count, threads) << 14;
            }
            (0x8000_0001, _) if count > 1 && is_amd(supported) => entry.ecx |= CMP_LEGACY,
            (0x8000_0008, _) => entry.ecx = entry.ecx & !0xf0ff | id_bits << 12 | (count - 1),
            (0x8000_001d, _) if entry.eax & 0x1f != 0 => {
                entry.eax = entry.eax & 0x3fff | sharing(entry.eax, count, threads) << 14;
            }
            // The core, and its threads less one.
            (0x8000_001e, _) => {
                (entry.eax, entry.ebx, entry.ecx) = (id, (id / threads) | ((threads - 1) << 8), 0);
            }
            _ => {}
        }
    }
    for function in [0xb, 0x1f] {
        if supported.iter().any(|entry| entry.function == function) {
            entries.extend(levels(function, id, threads, (count, id_bits)));
        }
    }
    // A missing leaf reads as zeros, and KVM's list is short (80 leaves).
    entries.retain(|entry| entry.eax | entry.ebx | entry.ecx | entry.edx != 0);
    entries.sort_unstable_by_key(|entry| (entry.function, entry.index));
    entries
}

/// Returns the number of threads that share a cache, less one, from its level in EAX. Each core has its own
/// levels 1 and 2.
fn sharing(eax: u32, count: u32, threads: u32) -> u32 {
    if (eax >> 5) & 7 >= 3 { count - 1 } else { threads - 1 }
}

/// Returns the levels of the extended topology (Intel SDM volume 2, CPUID leaves 0BH and 1FH): the threads of
/// a core, and the cores of the package.
fn levels(function: u32, id: u32, threads: u32, (count, id_bits): (u32, u32)) -> [CpuidEntry; 3] {
    let level = |index, shift, logical, kind: u32| CpuidEntry {
        function,
        index,
        flags: KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
        eax: shift,
        ebx: logical,
        ecx: kind << 8 | index,
        edx: id,
    };
    [level(0, threads.trailing_zeros(), threads, 1), level(1, id_bits, count, 2), level(2, 0, 0, 0)]
}

fn is_amd(entries: &[CpuidEntry]) -> bool {
    entries.iter().any(|e| e.function == 0 && e.ebx == u32::from_le_bytes(*b"Auth"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(function: u32, index: u32) -> CpuidEntry {
        CpuidEntry { function, index, ..Default::default() }
    }

    #[test]
    fn every_vcpu_has_its_own_apic_id_and_the_same_package() {
        let supported = [leaf(1, 0), leaf(2, 0), leaf(0xb, 0), leaf(0x8000_0008, 0), leaf(0x8000_001e, 7)];
        for id in 0..3 {
            let entries = for_vcpu(&supported, id, Topology { vcpus: 3, smt: false });
            let find = |function, index| {
                entries.iter().find(|e| (e.function, e.index) == (function, index)).unwrap()
            };
            assert_eq!(find(1, 0).ebx >> 24, u32::from(id));
            assert_eq!(find(1, 0).ebx >> 16 & 0xff, 3);
            assert_ne!(find(1, 0).edx & HTT, 0);
            assert_eq!((find(0xb, 1).eax, find(0xb, 1).ebx, find(0xb, 1).edx), (2, 3, u32::from(id)));
            assert_eq!(find(0x8000_0008, 0).ecx, 2 << 12 | 2);
            assert!(entries.iter().all(|e| (e.function, e.eax, e.ebx) != (0x8000_001e, 0, 1)));
            assert!(!entries.iter().any(|e| e.function == 2), "the empty leaf is left out");
        }
        assert_eq!(for_vcpu(&supported, 0, Topology { vcpus: 1, smt: true })[0].edx & HTT, 0);
    }

    #[test]
    fn two_threads_share_a_core_if_asked_for() {
        let cache = |function, index, level: u32| CpuidEntry { eax: level << 5 | 1, ..leaf(function, index) };
        let mut supported = vec![leaf(1, 0), leaf(0xb, 0), leaf(0x1f, 0), leaf(0x8000_001e, 7)];
        for function in [4, 0x8000_001d] {
            supported.extend([cache(function, 0, 1), cache(function, 2, 2), cache(function, 3, 3)]);
        }
        for id in 0..4 {
            let entries = for_vcpu(&supported, id, Topology { vcpus: 4, smt: true });
            let find = |function, index| {
                entries.iter().find(|e| (e.function, e.index) == (function, index)).unwrap()
            };
            let id = u32::from(id);
            for function in [0xb, 0x1f] {
                let (threads, cores) = (find(function, 0), find(function, 1));
                assert_eq!((threads.eax, threads.ebx, threads.edx), (1, 2, id));
                assert_eq!((cores.eax, cores.ebx, cores.edx), (2, 4, id));
            }
            for function in [4, 0x8000_001d] {
                let sharing = |index| find(function, index).eax >> 14 & 0xfff;
                assert_eq!([sharing(0), sharing(2), sharing(3)], [1, 1, 3]);
            }
            assert_eq!(find(4, 0).eax >> 26, 1, "two cores");
            assert_eq!(find(0x8000_001e, 7).ebx, (id / 2) | (1 << 8));
            assert_eq!(find(1, 0).ebx >> 16, id << 8 | 4);
        }
    }
}
