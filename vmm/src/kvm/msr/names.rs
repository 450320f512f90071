//! Names of model-specific registers, for people who read a state file. A name is written for its number, and
//! ignored when the file is read.

use std::borrow::Cow;

/// Numbers and names from arch/x86/include/asm/msr-index.h and kvm_para.h, sorted by number.
const NAMES: &[(u32, &str)] = &[
    (0x10, "tsc"),
    (0x1b, "apic_base"),
    (0x34, "smi_count"),
    (0x3a, "feature_control"),
    (0x3b, "tsc_adjust"),
    (0x48, "spec_ctrl"),
    (0x8b, "ucode_rev"),
    (0x9e, "smbase"),
    (0xce, "platform_info"),
    (0x10a, "arch_capabilities"),
    (0x122, "tsx_ctrl"),
    (0x140, "misc_features_enables"),
    (0x174, "sysenter_cs"),
    (0x175, "sysenter_esp"),
    (0x176, "sysenter_eip"),
    (0x179, "mcg_cap"),
    (0x17a, "mcg_status"),
    (0x17b, "mcg_ctl"),
    (0x1a0, "misc_enable"),
    (0x1d9, "debugctl"),
    (0x277, "pat"),
    (0x2ff, "mtrr_def_type"),
    (0x345, "perf_capabilities"),
    (0x4d0, "mcg_ext_ctl"),
    (0x6e0, "tsc_deadline"),
    (0xda0, "xss"),
    (0x4b56_4d00, "kvm_wall_clock_new"),
    (0x4b56_4d01, "kvm_system_time_new"),
    (0x4b56_4d02, "kvm_async_pf_en"),
    (0x4b56_4d03, "kvm_steal_time"),
    (0x4b56_4d04, "kvm_pv_eoi_en"),
    (0x4b56_4d05, "kvm_poll_control"),
    (0x4b56_4d06, "kvm_async_pf_int"),
    (0x4b56_4d07, "kvm_async_pf_ack"),
    (0x4b56_4d08, "kvm_migration_control"),
    (0xc000_0080, "efer"),
    (0xc000_0081, "star"),
    (0xc000_0082, "lstar"),
    (0xc000_0083, "cstar"),
    (0xc000_0084, "syscall_mask"),
    (0xc000_0100, "fs_base"),
    (0xc000_0101, "gs_base"),
    (0xc000_0102, "kernel_gs_base"),
    (0xc000_0103, "tsc_aux"),
    (0xc000_0104, "tsc_ratio"),
];

/// Returns the name of a register, if it has one here.
pub(super) fn name(index: u32) -> Option<Cow<'static, str>> {
    if let Ok(at) = NAMES.binary_search_by_key(&index, |(index, _)| *index) {
        return Some(NAMES[at].1.into());
    }
    let part = |first: u32, len: u32| ((index - first) / len, ((index - first) % len) as usize);
    Some(match index {
        0x11 => "kvm_wall_clock".into(),
        0x12 => "kvm_system_time".into(),
        0x200..=0x20f => {
            let (range, which) = part(0x200, 2);
            format!("mtrr_{}{range}", ["base", "mask"][which]).into()
        }
        0x250 => "mtrr_fix_64k_00000".into(),
        0x258 | 0x259 => format!("mtrr_fix_16k_{:05x}", 0x80000 + (index - 0x258) * 0x20000).into(),
        0x268..=0x26f => format!("mtrr_fix_4k_{:05x}", 0xc0000 + (index - 0x268) * 0x8000).into(),
        super::MC0_CTL..0x480 => {
            let (bank, which) = part(super::MC0_CTL, super::MC_BANK_LEN);
            format!("mc{bank}_{}", ["ctl", "status", "addr", "misc"][which]).into()
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_sorted_and_computed_names_are_right() {
        assert!(NAMES.is_sorted_by_key(|(index, _)| *index));
        for (index, expected) in [
            (0x34, "smi_count"),
            (0x9e, "smbase"),
            (0xc000_0081, "star"),
            (0x201, "mtrr_mask0"),
            (0x259, "mtrr_fix_16k_a0000"),
            (0x26f, "mtrr_fix_4k_f8000"),
            (0x405, "mc1_status"),
        ] {
            assert_eq!(name(index).unwrap(), expected);
        }
        assert_eq!(name(0x1234), None);
    }
}
