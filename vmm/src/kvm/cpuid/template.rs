//! Masks of a CPU template over the leaves of CPUID.

use super::CpuidEntry;
use super::features::CpuidRegister::{self, Eax, Ebx, Ecx, Edx};
use super::features::value;
use super::missing;
use crate::config::cpu::{CpuModel, CpuTemplate, LeafMask, Mask32, Number};

/// The registers that hold the vendor's name, in the order of its letters.
const VENDOR: [CpuidRegister; 3] = [Ebx, Edx, Ecx];

/// The masks of a leaf, each with its register.
pub(super) fn masks(leaf: &LeafMask) -> [(CpuidRegister, Mask32); 4] {
    let LeafMask { leaf: _, subleaf: _, flags: _, eax, ebx, ecx, edx } = *leaf;
    [(Eax, eax), (Ebx, ebx), (Ecx, ecx), (Edx, edx)]
}

/// Returns the name of the CPU's vendor.
pub(super) fn vendor(entries: &[CpuidEntry]) -> String {
    let bytes = VENDOR.into_iter().flat_map(|register| value(entries, 0, 0, register).to_le_bytes());
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).trim_end_matches('\0').to_owned()
}

/// Returns the model of the CPU with these leaves.
pub fn model(entries: &[CpuidEntry]) -> CpuModel {
    CpuModel { vendor: vendor(entries), signature: Number(value(entries, 1, 0, Eax)) }
}

/// Whether the template was made for the CPU with these leaves, by name.
pub fn is_made_for(template: &CpuTemplate, offered: &[CpuidEntry]) -> bool {
    template.models.contains(&model(offered))
}

/// Features with an MSR of their own, which guests without the feature lack: MSR, leaf, register, bit.
const MSRS_OF_FEATURES: &[(u32, u32, CpuidRegister, u32)] = &[
    // ARCH_CAPABILITIES, which the kernel reports on CPUs without it too.
    (0x10a, 7, Edx, 1 << 29),
    // PERF_CAPABILITIES.
    (0x345, 1, Ecx, 1 << 15),
];

/// Whether a guest with these leaves has the MSR, as far as they tell.
pub fn has_msr(entries: &[CpuidEntry], index: u32) -> bool {
    let of_msr = MSRS_OF_FEATURES.iter().find(|(msr, ..)| *msr == index);
    of_msr.is_none_or(|&(_, leaf, register, bit)| value(entries, leaf, 0, register) & bit != 0)
}

/// Returns the leaves under the template's masks.
pub fn masked(template: &CpuTemplate, offered: &[CpuidEntry]) -> Vec<CpuidEntry> {
    let mut entries = offered.to_vec();
    for leaf in &template.cpuid {
        let (function, index) = leaf.key();
        let found = entries.iter_mut().find(|entry| (entry.function, entry.index) == (function, index));
        let Some(entry) = found else {
            let mut entry = CpuidEntry { function, index, flags: leaf.flags, ..Default::default() };
            apply(leaf, &mut entry);
            entries.push(entry);
            continue;
        };
        // Whether subleaves differ is the host's to say.
        entry.flags |= leaf.flags;
        apply(leaf, entry);
    }
    entries
}

fn apply(leaf: &LeafMask, entry: &mut CpuidEntry) {
    for (register, mask) in masks(leaf) {
        let value = register.of_mut(entry);
        *value = mask.apply(u64::from(*value)) as u32;
    }
}

/// Adds the bits that the template sets to the leaves of a CPU that it was made for.
pub fn vouch(template: &CpuTemplate, supported: &mut [CpuidEntry]) {
    for leaf in &template.cpuid {
        for entry in supported.iter_mut().filter(|entry| (entry.function, entry.index) == leaf.key()) {
            for (register, mask) in masks(leaf) {
                *register.of_mut(entry) |= mask.value() as u32;
            }
        }
    }
}

/// Names the parts of the template that do not fit a host which offers these leaves.
pub fn lacking(template: &CpuTemplate, offered: &[CpuidEntry]) -> Vec<String> {
    let masked = masked(template, offered);
    let mut supported = offered.to_vec();
    if is_made_for(template, offered) {
        vouch(template, &mut supported);
    }
    let mut lacking = missing(&masked, &supported);
    let (wanted, here) = (vendor(&masked), vendor(offered));
    if wanted != here {
        lacking.push(format!("vendor {wanted} (this CPU is of {here})"));
    }
    let has = |(function, index)| offered.iter().any(|e| (e.function, e.index) == (function, index));
    let is_set = |leaf: &LeafMask| masks(leaf).iter().any(|(_, mask)| mask.value() != 0);
    for leaf in template.cpuid.iter().filter(|leaf| is_set(leaf) && !has(leaf.key())) {
        lacking.push(format!("CPUID leaf {} subleaf {}", leaf.leaf, leaf.subleaf));
    }
    lacking
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kvm::cpuid::restorable;

    fn host() -> Vec<CpuidEntry> {
        let leaf = |function, index| CpuidEntry { function, index, ..Default::default() };
        let [ebx, edx, ecx] = [*b"Auth", *b"enti", *b"cAMD"].map(|four: [u8; 4]| u32::from_le_bytes(four));
        vec![
            CpuidEntry { eax: 0x10, ebx, ecx, edx, ..leaf(0, 0) },
            CpuidEntry { eax: 0x00a0_0f11, ecx: 1 << 28 | 1 << 31, edx: 1, ..leaf(1, 0) },
            CpuidEntry { flags: 1, ebx: 1 << 16 | 1 << 5, ..leaf(7, 0) },
            CpuidEntry { eax: 0x0730_0402, ..leaf(0xa, 0) },
            CpuidEntry { flags: 1, eax: 0b1110_0111, ecx: 2688, ..leaf(0xd, 0) },
            CpuidEntry { flags: 1, eax: 256, ebx: 576, ..leaf(0xd, 2) },
            CpuidEntry { flags: 1, eax: 64, ebx: 1088, ..leaf(0xd, 5) },
        ]
    }

    fn template(cpuid: &str) -> CpuTemplate {
        serde_json::from_str(&format!(r#"{{"cpuid":[{cpuid}]}}"#)).unwrap()
    }

    #[test]
    fn masks_change_their_bits_alone() {
        let host = host();
        let no_avx512 = template(
            r#"{"leaf":"0x7","flags":1,"ebx":"0b0xxxxxxxxxxxxxxxx"},
               {"leaf":"0xd","flags":1,"eax":"0b000xxxxx"},{"leaf":"0x8","ecx":"0b0"}"#,
        );
        assert_eq!(lacking(&no_avx512, &host), [] as [&str; 0]);
        let guest = restorable(&masked(&no_avx512, &host));
        assert_eq!(value(&guest, 7, 0, Ebx), 1 << 5);
        assert_eq!(value(&guest, 0xd, 0, Eax), 0b111);
        assert_eq!(value(&guest, 0xd, 0, Ecx), 832, "the XSAVE area has no room for AVX-512");
        assert_eq!(guest.iter().find(|entry| entry.function == 1), host.get(1));
        assert_eq!(guest.iter().find(|entry| entry.function == 7).unwrap().flags, 1);
    }

    #[test]
    fn bit_that_the_host_lacks_is_named_in_each_register() {
        let host = host();
        for (leaf, names) in [
            (r#"{"leaf":"0x1","ecx":"0b1xxxxxxxxxxxx"}"#, &["fma"][..]),
            (r#"{"leaf":"0x1","edx":"0b1x"}"#, &["vme"]),
            (r#"{"leaf":"0x7","ebx":"0b11xxxxxxxxxxxxxxxx"}"#, &["avx512dq"]),
            (r#"{"leaf":"0xd","eax":"0b1xxxxxxxxx"}"#, &["pkru state"]),
            (r#"{"leaf":"0xa","eax":"0b00000111xxxxxxxx"}"#, &["pmu counters 7"]),
            (
                r#"{"leaf":"0x7","subleaf":"0x1","eax":"0b1xxxx"}"#,
                &["avx_vnni", "CPUID leaf 0x7 subleaf 0x1"],
            ),
            (r#"{"leaf":"0x99","ebx":"0b1"}"#, &["CPUID leaf 0x99 subleaf 0x0"]),
            (r#"{"leaf":"0x0","ebx":"0b0"}"#, &["vendor @uthenticAMD (this CPU is of AuthenticAMD)"]),
        ] {
            assert_eq!(lacking(&template(leaf), &host), names, "{leaf}");
        }
        // A smaller number has other bits, and a model is no feature.
        for leaf in [r#"{"leaf":"0xa","eax":"0b00000011xxxxxxxx"}"#, r#"{"leaf":"0x1","eax":"0b1111"}"#] {
            assert_eq!(lacking(&template(leaf), &host), [] as [&str; 0], "{leaf}");
        }
    }

    #[test]
    fn features_that_no_snapshot_can_restore_stay_hidden() {
        let with_vmx = [CpuidEntry { function: 1, ecx: 1 << 5, ..Default::default() }];
        let template = template(r#"{"leaf":"0x1","ecx":"0b1xxxxx"}"#);
        assert_eq!(lacking(&template, &restorable(&with_vmx)), ["vmx"]);
    }

    #[test]
    fn template_vouches_for_its_bits_on_its_models_alone() {
        let host = host();
        let mut template = template(r#"{"leaf":"0x7","flags":1,"ebx":"0b1xxxx"}"#);
        assert_eq!(lacking(&template, &host), ["hle"]);
        template.models = vec![model(&host)];
        assert!(is_made_for(&template, &host));
        assert_eq!(lacking(&template, &host), [] as [&str; 0]);
        template.models[0].signature.0 += 1;
        assert!(!is_made_for(&template, &host));
        assert_eq!(lacking(&template, &host), ["hle"]);
    }
}
