//! What the guest sees of the CPU: starts from what KVM supports, leaves out what a snapshot could not carry, adds what
//! KVM only reports elsewhere, and gives each vCPU its place in the topology.

use kvm_bindings::{CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, KVM_MAX_CPUID_ENTRIES};
use kvm_ioctls::Kvm;

use super::OrRefused;
pub use super::mirror::CpuidEntry;
use crate::error::Result;

mod features;
pub use features::missing;

const HYPERVISOR: u32 = 1 << 31;
const TSC_DEADLINE: u32 = 1 << 24;
const VMX: u32 = 1 << 5;
const SVM: u32 = 1 << 2;
const HTT: u32 = 1 << 28;
const CMP_LEGACY: u32 = 1 << 1;
/// Leaf 7 EDX: AMX-BF16, AMX-TILE, AMX-INT8; leaf 0xD EAX: the two tile components.
const AMX: u32 = 1 << 22 | 1 << 24 | 1 << 25;
const AMX_XSTATE: u32 = 1 << 17 | 1 << 18;
/// KVM's paravirtual leaf: asynchronous page faults, whose pending ones no snapshot can hold.
const ASYNC_PF: u32 = 1 << 4 | 1 << 10 | 1 << 14;

/// What any vCPU on this host may be shown.
///
/// # Errors
/// `KVM_GET_SUPPORTED_CPUID` refused. The call costs 0.3 ms: a restore on the host of the snapshot does without.
pub fn supported(kvm: &Kvm) -> Result<Vec<CpuidEntry>> {
    let reported = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).or_refused("KVM_GET_SUPPORTED_CPUID")?;
    let mut entries: Vec<CpuidEntry> = reported.as_slice().iter().map(|&entry| entry.into()).collect();
    let tsc_deadline = if super::has_tsc_deadline(kvm) { TSC_DEADLINE } else { 0 };
    for entry in &mut entries {
        match (entry.function, entry.index) {
            (1, _) => entry.ecx = entry.ecx & !VMX | HYPERVISOR | tsc_deadline,
            (7, 0) => entry.edx &= !AMX,
            (0xd, 0) => entry.eax &= !AMX_XSTATE,
            (0xd, 17 | 18) | (0x1d | 0x1e, _) => {
                (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0);
            }
            (0x8000_0001, _) => entry.ecx &= !SVM,
            (0x4000_0001, _) => entry.eax &= !ASYNC_PF,
            _ => {}
        }
    }
    Ok(entries)
}

/// The supported leaves as vCPU `id` of `count` sees them: one package, one thread a core. APIC ids are vCPU numbers.
#[must_use]
pub fn for_vcpu(supported: &[CpuidEntry], id: u8, count: u8) -> Vec<CpuidEntry> {
    let (id, count) = (u32::from(id), u32::from(count));
    let id_bits = count.next_power_of_two().trailing_zeros();
    let mut entries: Vec<_> =
        supported.iter().filter(|e| !matches!(e.function, 0xb | 0x1f)).copied().collect();
    for entry in &mut entries {
        match (entry.function, entry.index) {
            (1, _) => {
                entry.ebx = entry.ebx & 0xffff | id << 24 | count << 16;
                entry.edx = if count > 1 { entry.edx | HTT } else { entry.edx & !HTT };
            }
            // Cores in the package, and the threads that share each cache: levels 1 and 2 are a core's own.
            (4, _) if entry.eax & 0x1f != 0 => {
                let sharing = if (entry.eax >> 5) & 7 >= 3 { count - 1 } else { 0 };
                entry.eax = entry.eax & 0x3fff | (count - 1).min(63) << 26 | sharing << 14;
            }
            (0x8000_0001, _) if count > 1 && is_amd(supported) => entry.ecx |= CMP_LEGACY,
            (0x8000_0008, _) => entry.ecx = entry.ecx & !0xf0ff | id_bits << 12 | (count - 1),
            (0x8000_001d, _) if entry.eax & 0x1f != 0 => {
                let sharing = if (entry.eax >> 5) & 7 >= 3 { count - 1 } else { 0 };
                entry.eax = entry.eax & 0x3fff | sharing << 14;
            }
            (0x8000_001e, _) => {
                (entry.eax, entry.ebx, entry.ecx) = (id, id, 0);
            }
            _ => {}
        }
    }
    for function in [0xb, 0x1f] {
        if supported.iter().any(|entry| entry.function == function) {
            entries.extend(topology(function, id, count, id_bits));
        }
    }
    // A leaf that is not there reads as zeros, and the list is short (80 leaves).
    entries.retain(|entry| entry.eax | entry.ebx | entry.ecx | entry.edx != 0);
    entries.sort_unstable_by_key(|entry| (entry.function, entry.index));
    entries
}

/// Extended topology (Intel SDM volume 2, CPUID leaves 0BH and 1FH): a level of threads, one a core, a level of cores.
fn topology(function: u32, id: u32, count: u32, id_bits: u32) -> [CpuidEntry; 3] {
    let level = |index, shift, logical, kind: u32| CpuidEntry {
        function,
        index,
        flags: KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
        eax: shift,
        ebx: logical,
        ecx: kind << 8 | index,
        edx: id,
    };
    [level(0, 0, 1, 1), level(1, id_bits, count, 2), level(2, 0, 0, 0)]
}

/// Whether a guest that is shown these leaves takes this for Hyper-V (TLFS, 2.4: the interface's signature).
pub(super) fn shows_hyperv(shown: &[CpuidEntry]) -> bool {
    shown.iter().any(|e| e.function == 0x4000_0001 && e.eax == u32::from_le_bytes(*b"Hv#1"))
}

fn is_amd(entries: &[CpuidEntry]) -> bool {
    entries.iter().any(|e| e.function == 0 && e.ebx == u32::from_le_bytes(*b"Auth"))
}

/// As KVM takes it.
pub(super) fn to_kvm(entries: &[CpuidEntry]) -> Option<CpuId> {
    let entries: Vec<_> = entries.iter().map(|&entry| entry.into()).collect();
    CpuId::from_entries(&entries).ok()
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
            let entries = for_vcpu(&supported, id, 3);
            let find = |function, index| {
                entries.iter().find(|e| (e.function, e.index) == (function, index)).unwrap()
            };
            assert_eq!(find(1, 0).ebx >> 24, u32::from(id));
            assert_eq!(find(1, 0).ebx >> 16 & 0xff, 3);
            assert_ne!(find(1, 0).edx & HTT, 0);
            assert_eq!((find(0xb, 1).eax, find(0xb, 1).ebx, find(0xb, 1).edx), (2, 3, u32::from(id)));
            assert_eq!(find(0x8000_0008, 0).ecx, 2 << 12 | 2);
            assert!(entries.iter().all(|e| (e.function, e.eax, e.ebx) != (0x8000_001e, 0, 1)));
            assert!(!entries.iter().any(|e| e.function == 2), "an empty leaf is left out");
        }
        assert_eq!(for_vcpu(&supported, 0, 1)[0].edx & HTT, 0);
    }
}
