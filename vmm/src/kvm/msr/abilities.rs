//! MSRs that tell what a CPU can do. KVM takes any value for them, so their bits are compared here.

use super::Msr;
use crate::config::cpu::{Mask64, MsrMask, Number};

pub const ARCH_CAPABILITIES: u32 = 0x10a;
const PERF_CAPABILITIES: u32 = 0x345;
/// AMD's DE_CFG: LFENCE serializes.
const DE_CFG: u32 = 0xc001_1029;

/// The MSRs of a dump. The others that KVM lists are numbers, such as the revision of microcode, or belong to
/// nested virtualisation.
const DUMPED: [u32; 3] = [ARCH_CAPABILITIES, PERF_CAPABILITIES, DE_CFG];

/// Bits of ARCH_CAPABILITIES that admit a weakness (RSBA, RRSBA): a guest may see more of them than its host.
const ADMISSIONS: u64 = 1 << 2 | 1 << 19;

/// Fields of PERF_CAPABILITIES that are numbers of a format: LBR, PEBS.
const FORMATS: [u64; 2] = [0x3f, 0xf00];

/// Names of the bits of ARCH_CAPABILITIES (arch/x86/include/asm/msr-index.h).
const NAMES: &[(u32, &str)] = &[
    (0, "rdcl_no"),
    (1, "ibrs_all"),
    (2, "rsba"),
    (3, "skip_l1dfl_vmentry"),
    (4, "ssb_no"),
    (5, "mds_no"),
    (6, "pschange_mc_no"),
    (7, "tsx_ctrl"),
    (8, "taa_no"),
    (10, "misc_package_ctls"),
    (11, "energy_filtering_ctl"),
    (12, "doitm"),
    (13, "sbdr_ssdp_no"),
    (14, "fbsdp_no"),
    (15, "psdp_no"),
    (17, "fb_clear"),
    (18, "fb_clear_ctrl"),
    (19, "rrsba"),
    (20, "bhi_no"),
    (21, "xapic_disable"),
    (23, "overclocking_status"),
    (24, "pbrsb_no"),
    (25, "gds_ctrl"),
    (26, "gds_no"),
    (27, "rfds_no"),
    (28, "rfds_clear"),
    (62, "its_no"),
];

fn value(msrs: &[Msr], index: u32) -> u64 {
    msrs.iter().find(|msr| msr.index == index).and_then(|msr| msr.value).unwrap_or(0)
}

fn vouched(masks: &[MsrMask], index: u32) -> u64 {
    masks.iter().find(|mask| mask.index.0 == index).map_or(0, |mask| mask.bits.value())
}

/// Names the abilities that a guest sees in `shown` and that a host with these feature MSRs lacks. Bits that
/// `vouched_for` sets count as present.
pub fn missing(shown: &[Msr], features: &[Msr], vouched_for: &[MsrMask]) -> Vec<String> {
    let index = ARCH_CAPABILITIES;
    let lacking = value(shown, index) & !value(features, index) & !ADMISSIONS & !vouched(vouched_for, index);
    let bits = (0..u64::BITS).filter(|bit| lacking >> bit & 1 == 1);
    let name = |bit| NAMES.iter().find(|(known, _)| *known == bit).map(|(_, name)| *name);
    bits.map(|bit| match name(bit) {
        Some(name) => format!("{name} (MSR {index:#x} bit {bit})"),
        None => format!("MSR {index:#x} bit {bit}"),
    })
    .collect()
}

/// Returns masks that fix the abilities among these feature MSRs.
pub fn dump(features: &[Msr]) -> Vec<MsrMask> {
    let fix = |msr: &Msr| {
        let value = msr.value.filter(|_| DUMPED.contains(&msr.index))?;
        Some(MsrMask { index: Number(msr.index), bits: Mask64::new(u64::MAX, value) })
    };
    features.iter().filter_map(fix).collect()
}

/// Returns masks for the abilities that all of the dumped hosts have. An MSR that a host lacks has zeros.
pub fn intersection(dumps: &[&[MsrMask]]) -> Vec<MsrMask> {
    let mut indices: Vec<_> = dumps.iter().flat_map(|dump| dump.iter().map(|mask| mask.index)).collect();
    indices.sort_unstable();
    indices.dedup();
    indices.into_iter().map(|index| MsrMask { index, bits: common(index, dumps) }).collect()
}

fn common(index: Number, dumps: &[&[MsrMask]]) -> Mask64 {
    let of_host = |dump: &&[MsrMask]| {
        let found = dump.iter().find(|mask| mask.index == index);
        found.map_or(Mask64::new(u64::MAX, 0), |mask| mask.bits)
    };
    let hosts: Vec<_> = dumps.iter().map(of_host).collect();
    let all = hosts.iter().fold(u64::MAX, |all, mask| all & mask.value());
    let any = hosts.iter().fold(0, |any, mask| any | mask.value());
    let mut value = all;
    match index.0 {
        ARCH_CAPABILITIES => value |= any & ADMISSIONS,
        PERF_CAPABILITIES => {
            // Part of a format's number is another format.
            let differing = FORMATS.into_iter().filter(|format| all & format != any & format);
            differing.for_each(|format| value &= !format);
        }
        _ => {}
    }
    Mask64::new(hosts.iter().fold(u64::MAX, |fixed, mask| fixed & mask.fixed()), value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn msr(index: u32, value: u64) -> Msr {
        Msr { index, value: Some(value) }
    }

    #[test]
    fn missing_ability_is_named_and_an_admission_is_none() {
        let host = [msr(ARCH_CAPABILITIES, 0b11)];
        let shown = [msr(ARCH_CAPABILITIES, 1 << 40 | 1 << 19 | 1 << 5 | 0b101), msr(0x10, 7)];
        assert_eq!(missing(&shown, &host, &[]), ["mds_no (MSR 0x10a bit 5)", "MSR 0x10a bit 40"]);
        assert_eq!(missing(&shown, &[], &[])[0], "rdcl_no (MSR 0x10a bit 0)");
        let bits = Mask64::new(u64::MAX, 1 << 40 | 1 << 5);
        let vouched_for = [MsrMask { index: Number(ARCH_CAPABILITIES), bits }];
        assert_eq!(missing(&shown, &host, &vouched_for), [] as [&str; 0]);
        assert_eq!(missing(&host, &host, &[]), [] as [&str; 0]);
    }

    #[test]
    fn intersection_keeps_abilities_and_adds_admissions() {
        let revision = msr(0x8b, 9);
        let dumps = [
            dump(&[msr(ARCH_CAPABILITIES, 0b0011), msr(PERF_CAPABILITIES, 1 << 13 | 5), revision]),
            dump(&[msr(ARCH_CAPABILITIES, 0b0110), msr(PERF_CAPABILITIES, 1 << 13 | 4), msr(DE_CFG, 2)]),
        ];
        let common = intersection(&[&dumps[0], &dumps[1]]);
        let values: Vec<_> = common.iter().map(|mask| (mask.index.0, mask.bits.value())).collect();
        assert_eq!(values, [(ARCH_CAPABILITIES, 0b0110), (PERF_CAPABILITIES, 1 << 13), (DE_CFG, 0)]);
        assert!(common.iter().all(|mask| mask.bits.fixed() == u64::MAX));
        assert_eq!(intersection(&[&dumps[0]]), dumps[0]);
    }
}
