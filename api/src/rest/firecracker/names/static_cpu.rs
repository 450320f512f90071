//! Firecracker's static CPU templates, by the names of `cpu_template`. Each is for some models of CPUs
//! (docs/cpu_templates/cpu-templates.md of Firecracker); the library refuses to boot under it on others.

use volt_vmm::CpuTemplate;
use volt_vmm::config::cpu::{CpuModel, Number};

use super::cpu::CpuConfig;
use crate::rest::error::Fault;

const SKYLAKE: u32 = 0x0005_0654;
const CASCADE_LAKE: u32 = 0x0005_0657;
const ICE_LAKE: u32 = 0x0006_06a6;
const MILAN: u32 = 0x00a0_0f11;

/// A static template: its name, the vendor and the signatures of its CPUs, and its content.
struct StaticTemplate(&'static str, &'static str, &'static [u32], &'static str);

const ALL: [StaticTemplate; 4] = [
    StaticTemplate("T2", INTEL, &[SKYLAKE, CASCADE_LAKE, ICE_LAKE], include_str!("static_cpu/T2.json")),
    StaticTemplate("T2S", INTEL, &[SKYLAKE, CASCADE_LAKE], include_str!("static_cpu/T2S.json")),
    StaticTemplate("T2CL", INTEL, &[CASCADE_LAKE, ICE_LAKE], include_str!("static_cpu/T2CL.json")),
    StaticTemplate("T2A", "AuthenticAMD", &[MILAN], include_str!("static_cpu/T2A.json")),
];
const INTEL: &str = "GenuineIntel";

/// Templates of Firecracker that volt-vmm lacks, and why.
const REFUSED: [(&str, &str); 2] = [
    (
        "C3",
        "not supported: Firecracker deprecates it, and guests under it leave out the mitigation of stale \
         MMIO data on CPUs that need it; use T2, or a custom template",
    ),
    ("V1N1", "for aarch64 only, and this is x86_64; leave it out"),
];

/// Returns the static template of a name; none for `None`.
///
/// # Errors
/// The name is unknown, or volt-vmm lacks its template.
pub(crate) fn named(name: &str) -> Result<Option<CpuTemplate>, Fault> {
    if name == "None" {
        return Ok(None);
    }
    if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
        return Err(Fault::refused(format!("cpu_template: {name} is {why}")));
    }
    let found = ALL.iter().find(|template| template.0 == name);
    let found = found.ok_or_else(|| {
        let names = ALL.map(|StaticTemplate(name, ..)| name).join(", ");
        Fault::refused(format!("cpu_template: {name:?} is unknown; it is None or one of {names}"))
    })?;
    found.template().map(Some)
}

/// Returns the name of a template that is a static one.
pub(crate) fn name_of(template: &CpuTemplate) -> Option<&'static str> {
    let has_name = |known: &StaticTemplate| template.name.as_deref() == Some(known.0);
    // Parsing one takes a while, and most templates are none of these.
    let is_it =
        |known: &&StaticTemplate| has_name(known) && known.template().is_ok_and(|known| known == *template);
    ALL.iter().find(is_it).map(|known| known.0)
}

impl StaticTemplate {
    fn template(&self) -> Result<CpuTemplate, Fault> {
        let Self(name, vendor, signatures, content) = *self;
        let model = |signature: &u32| CpuModel { vendor: vendor.to_owned(), signature: Number(*signature) };
        let models = signatures.iter().map(model).collect();
        let content = CpuConfig::template_of(content.as_bytes())?;
        Ok(CpuTemplate { name: Some(name.to_owned()), models, ..content })
    }
}

#[cfg(test)]
mod tests {
    use volt_vmm::config::cpu::LeafMask;

    use super::*;

    /// A register of a leaf and a subleaf of CPUID, its changed bits, and their values.
    type Changed = (u32, u32, &'static str, u32, u32);

    /// Registers that all static templates change alike. All numbers here are those of Firecracker's sources.
    const COMMON: [Changed; 8] = [
        (1, 0, "eax", 0x0fff_3fff, 0x0003_06f2),
        (1, 0, "ecx", 0x0004_cdfc, 0),
        (1, 0, "edx", 0xe864_1080, 0x0000_1080),
        (7, 0, "ebx", 0xffef_da14, 0x0000_0200),
        (7, 0, "ecx", 0x4041_5f5e, 0),
        (7, 0, "edx", 0x0000_011c, 0),
        (0xd, 0, "eax", 0x0000_02f8, 0),
        (0xd, 1, "eax", 0x0000_000e, 0),
    ];
    const EXTENDED: u32 = 0x8000_0001;
    const SIZES: u32 = 0x8000_0008;

    #[test]
    fn each_static_template_has_its_published_content() {
        for (name, models, [ecx, edx], [ebx, ebx_values], msrs) in [
            ("T2", 3, [0x2000_0100, 0x0400_0000], [0x200, 0], vec![]),
            ("T2S", 2, [0x2000_0100, 0x0400_0000], [0x200, 0], vec![(0x10a, u64::MAX, 0x0c0a_0c4c)]),
            ("T2CL", 2, [0x2000_01c0, 0x07c0_0000], [0x200, 0], vec![(0x10a, 0xffff_ffff_e2f5_1e00, 0)]),
            ("T2A", 1, [0x2000_01c4, 0x0640_0000], [0x001c_0205, 0x001c_0004], vec![]),
        ] {
            let template = named(name).unwrap().unwrap();
            template.validate().unwrap();
            assert_eq!((template.name.as_deref(), template.models.len()), (Some(name), models));
            let of_leaf = |leaf: &LeafMask| {
                let (key, LeafMask { eax, ebx, ecx, edx, .. }) = (leaf.key(), *leaf);
                [("eax", eax), ("ebx", ebx), ("ecx", ecx), ("edx", edx)].map(|(name, mask)| (key, name, mask))
            };
            let changed = template.cpuid.iter().flat_map(of_leaf).filter(|(_, _, mask)| !mask.is_empty());
            let changed = changed.map(|((leaf, subleaf), name, mask)| {
                (leaf, subleaf, name, mask.fixed() as u32, mask.value() as u32)
            });
            let own = [
                (EXTENDED, 0, "ecx", ecx, 0),
                (EXTENDED, 0, "edx", edx, 0),
                (SIZES, 0, "ebx", ebx, ebx_values),
            ];
            assert_eq!(changed.collect::<Vec<_>>(), [&COMMON[..], &own].concat(), "{name}");
            let found = template.msrs.iter().map(|msr| (msr.index.0, msr.bits.fixed(), msr.bits.value()));
            assert_eq!(found.collect::<Vec<_>>(), msrs, "{name}");
            assert_eq!(name_of(&template), Some(name));
            assert_eq!(name_of(&CpuTemplate { models: vec![], ..template }), None);
        }
        assert_eq!(named("None").unwrap(), None);
    }

    #[test]
    fn template_that_volt_vmm_lacks_is_refused_by_its_name() {
        for (name, words) in [
            ("C3", "C3 is not supported"),
            ("V1N1", "V1N1 is for aarch64"),
            ("t2", "T2, T2S, T2CL, T2A"),
            ("", "unknown"),
        ] {
            let refused = named(name).unwrap_err().to_string();
            assert!(refused.starts_with("cpu_template: ") && refused.contains(words), "{refused}");
        }
    }
}
