//! The CPUID leaves of a guest. They start from KVM's supported leaves, add the features that KVM reports
//! elsewhere, and leave out the features that a snapshot cannot restore. [`topology`] gives each vCPU its
//! place.

use kvm_bindings::{CpuId, KVM_MAX_CPUID_ENTRIES};
use kvm_ioctls::Kvm;

use super::KvmContext;
use crate::error::Result;
pub use crate::kvm::serde_mirror::CpuidEntry;

pub(super) mod dump;
mod features;
pub(crate) mod intersection;
pub(super) mod template;
mod topology;
mod xsave_layout;
use features::CpuidRegister::{self, Eax, Ecx, Edx};
pub(super) use features::{COVERED, digest};
pub use topology::{Topology, for_vcpu};
use xsave_layout::moved_components;

const HYPERVISOR: u32 = 1 << 31;
const TSC_DEADLINE: u32 = 1 << 24;

/// Features whose state a snapshot cannot restore: leaf, subleaf, register, bits.
const NOT_RESTORABLE: &[(u32, u32, CpuidRegister, u32)] = &[
    // Nested virtualisation: VMX, SVM.
    (1, 0, Ecx, 1 << 5),
    (0x8000_0001, 0, Ecx, 1 << 2),
    // CET: shadow stacks, indirect branch tracking, supervisor shadow stacks, and their states in XSS. The
    // shadow stack pointer is no MSR.
    (7, 0, Ecx, 1 << 7),
    (7, 0, Edx, 1 << 20),
    (7, 1, Edx, 1 << 18),
    (0xd, 1, Ecx, 1 << 11 | 1 << 12),
    // AMX: BF16, TILE, INT8; FP16; COMPLEX; the two tile components; XFD, which exists for them. A process
    // must ask the kernel for AMX, and its XSAVE area is 8 KiB longer.
    (7, 0, Edx, 1 << 22 | 1 << 24 | 1 << 25),
    (7, 1, Eax, 1 << 21),
    (7, 1, Edx, 1 << 8),
    (0xd, 0, Eax, 1 << 17 | 1 << 18),
    (0xd, 1, Eax, 1 << 4),
    // KVM's asynchronous page faults: pending ones cannot be saved.
    (0x4000_0001, 0, Eax, 1 << 4 | 1 << 10 | 1 << 14),
];

/// Returns the leaves that this host supports: KVM's list, with the features that KVM reports elsewhere. The
/// call takes 0.3 ms, so a restore on the snapshot's host avoids it.
///
/// # Errors
/// Returns an error if KVM refuses `KVM_GET_SUPPORTED_CPUID`.
pub fn supported(kvm: &Kvm) -> Result<Vec<CpuidEntry>> {
    let reported = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).context("KVM_GET_SUPPORTED_CPUID")?;
    let mut entries: Vec<CpuidEntry> = reported.as_slice().iter().map(|&entry| entry.into()).collect();
    let tsc_deadline = if super::has_tsc_deadline(kvm) { TSC_DEADLINE } else { 0 };
    entries.iter_mut().filter(|e| e.function == 1).for_each(|e| e.ecx |= HYPERVISOR | tsc_deadline);
    Ok(entries)
}

/// Returns the supported leaves without the features that a snapshot cannot restore. A guest boots with them.
#[must_use]
pub fn restorable(supported: &[CpuidEntry]) -> Vec<CpuidEntry> {
    let mut entries = supported.to_vec();
    for entry in &mut entries {
        let leaf = (entry.function, entry.index);
        for (_, _, register, bits) in NOT_RESTORABLE.iter().filter(|word| (word.0, word.1) == leaf) {
            *register.of_mut(entry) &= !bits;
        }
        // Components of CET and AMX, and the leaves that describe tiles.
        if matches!((entry.function, entry.index), (0xd, 11 | 12 | 17 | 18) | (0x1d | 0x1e, _)) {
            (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0);
        }
    }
    let size = xsave_size(&entries);
    // ECX is the size with all components. KVM computes EBX, the size with the enabled components.
    entries.iter_mut().filter(|e| (e.function, e.index) == (0xd, 0)).for_each(|e| e.ecx = e.ecx.min(size));
    entries
}

/// Returns the size in bytes of an XSAVE area in standard format with all components of XCR0 (Intel SDM
/// volume 1, 13.4.2).
fn xsave_size(entries: &[CpuidEntry]) -> u32 {
    const LEGACY_AND_HEADER: u32 = 512 + 64;
    let leaf = |index| entries.iter().find(move |e| (e.function, e.index) == (0xd, index));
    let xcr0 = leaf(0).map_or(0, |e| u64::from(e.edx) << 32 | u64::from(e.eax));
    let components = (2..63).filter(|component| xcr0 >> component & 1 == 1).filter_map(leaf);
    components.map(|e| e.ebx.saturating_add(e.eax)).fold(LEGACY_AND_HEADER, u32::max)
}

/// Names the features in `shown` (a guest's leaves) that `supported` (a host's leaves) lacks.
#[must_use]
pub fn missing(shown: &[CpuidEntry], supported: &[CpuidEntry]) -> Vec<String> {
    let mut names = features::missing(shown, supported);
    let moved = moved_components(shown, supported).into_iter();
    names.extend(moved.map(|component| format!("xsave component {component} at the guest's offset")));
    names
}

/// Whether these leaves have the signature of Hyper-V's interface (TLFS, 2.4).
pub(super) fn shows_hyperv(shown: &[CpuidEntry]) -> bool {
    shown.iter().any(|e| e.function == 0x4000_0001 && e.eax == u32::from_le_bytes(*b"Hv#1"))
}

/// Converts the leaves for KVM; none if they are too many.
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

    /// Leaves of a host with all bits set.
    fn with_everything() -> Vec<CpuidEntry> {
        let leaves = [(1, 0), (7, 0), (7, 1), (7, 2), (0x1d, 0), (0x1d, 1), (0x1e, 0), (0x1e, 1), (0x24, 0)];
        let leaves = leaves.into_iter().chain((0..20).map(|index| (0xd, index)));
        let leaves = leaves.chain([(0x4000_0001, 0), (0x8000_0001, 0), (0x8000_0021, 0)]);
        let registers =
            |leaf| CpuidEntry { eax: u32::MAX, ebx: u32::MAX, ecx: u32::MAX, edx: u32::MAX, ..leaf };
        leaves.map(|(function, index)| registers(leaf(function, index))).collect()
    }

    #[test]
    fn guest_has_exactly_the_features_that_a_snapshot_can_restore() {
        let host = with_everything();
        let shown = restorable(&host);
        let register = |function, index| {
            let entry = shown.iter().find(|e| (e.function, e.index) == (function, index)).unwrap();
            [entry.eax, entry.ebx, entry.ecx, entry.edx]
        };
        let (eax, ecx, edx) = (0, 2, 3);
        for (function, index, at, hidden) in [
            (1, 0, ecx, vec![5]),                   // vmx
            (0x8000_0001, 0, ecx, vec![2]),         // svm
            (7, 0, ecx, vec![7]),                   // shstk
            (7, 0, edx, vec![20, 22, 24, 25]),      // ibt, amx_bf16, amx_tile, amx_int8
            (7, 1, eax, vec![21]),                  // amx_fp16
            (7, 1, edx, vec![8, 18]),               // amx_complex, cet_sss
            (0xd, 0, eax, vec![17, 18]),            // tile configuration, tile data
            (0xd, 1, eax, vec![4]),                 // xfd
            (0xd, 1, ecx, vec![11, 12]),            // user and supervisor states of CET
            (0x4000_0001, 0, eax, vec![4, 10, 14]), // asynchronous page faults
        ] {
            for bit in 0..32 {
                let is_shown = register(function, index)[at] >> bit & 1 == 1;
                assert_eq!(is_shown, !hidden.contains(&bit), "{function:#x}.{index} register {at} bit {bit}");
            }
        }
        for (function, index) in
            [(0xd, 11), (0xd, 12), (0xd, 17), (0xd, 18), (0x1d, 0), (0x1d, 1), (0x1e, 0), (0x1e, 1)]
        {
            assert_eq!(register(function, index), [0; 4], "{function:#x}.{index}");
        }
        let bits = |entries: &[CpuidEntry]| -> u32 {
            entries
                .iter()
                .map(|e| [e.eax, e.ebx, e.ecx, e.edx].map(u32::count_ones).iter().sum::<u32>())
                .sum()
        };
        assert_eq!(bits(&host) - bits(&shown), 18 + 8 * 128);
    }

    #[test]
    fn xsave_area_of_a_guest_has_no_room_for_tiles() {
        let component = |index, size, offset| CpuidEntry { eax: size, ebx: offset, ..leaf(0xd, index) };
        let components = 1 << 18 | 1 << 17 | 0b111;
        let all = CpuidEntry { eax: components, ecx: 11_008, ..leaf(0xd, 0) };
        let host = [all, component(2, 256, 576), component(17, 64, 2752), component(18, 8192, 2816)];
        assert_eq!(restorable(&host)[0].ecx, 832);
        let without = CpuidEntry { eax: 0b11, ecx: 576, ..leaf(0xd, 0) };
        assert_eq!(restorable(&[without])[0].ecx, 576);
    }
}
