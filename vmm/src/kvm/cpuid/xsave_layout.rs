//! The layout of the XSAVE area. A guest reads it once and keeps it, so a host with another one cannot run
//! that guest.

use super::CpuidEntry;
use super::features::CpuidRegister::{Eax, Ebx, Edx};
use super::features::value;

/// Returns the components of XCR0 that both CPUs have, but at another place or of another size (Intel SDM
/// volume 1, 13.4.2).
pub(super) fn moved_components(one: &[CpuidEntry], other: &[CpuidEntry]) -> Vec<u32> {
    let xcr0 = |entries: &[CpuidEntry]| {
        u64::from(value(entries, 0xd, 0, Edx)) << 32 | u64::from(value(entries, 0xd, 0, Eax))
    };
    let both = xcr0(one) & xcr0(other);
    let place = |entries: &[CpuidEntry], component| {
        [Eax, Ebx].map(|register| value(entries, 0xd, component, register))
    };
    // The first two have no leaf of their own.
    let shared = (2..63).filter(|component| both >> component & 1 == 1);
    shared.filter(|component| place(one, *component) != place(other, *component)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kvm::cpuid::missing;

    #[test]
    fn component_at_another_place_is_missing() {
        let leaf = |index| CpuidEntry { function: 0xd, index, ..Default::default() };
        let host = |offset| {
            let components = CpuidEntry { eax: 1 << 9 | 0b111, ..leaf(0) };
            let avx = CpuidEntry { eax: 256, ebx: 576, ..leaf(2) };
            vec![components, avx, CpuidEntry { eax: 8, ebx: offset, ..leaf(9) }]
        };
        assert_eq!(moved_components(&host(2688), &host(832)), [9]);
        assert_eq!(missing(&host(2688), &host(832)), ["xsave component 9 at the guest's offset"]);
        assert!(moved_components(&host(832), &host(832)).is_empty());
        let mut without = host(832);
        without[0].eax &= !(1 << 9);
        assert!(moved_components(&without, &host(2688)).is_empty());
    }
}
