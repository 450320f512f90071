//! Which features a guest was shown that a host lacks. `KVM_SET_CPUID2` itself refuses almost nothing: without this
//! check a guest would meet an undefined instruction long after its restore.

use super::CpuidEntry;

#[derive(Clone, Copy)]
enum Register {
    Eax,
    Ebx,
    Ecx,
    Edx,
}
use Register::{Eax, Ebx, Ecx, Edx};

/// A register of feature bits: leaf, subleaf, register, bits that are not features of the host (topology, or mirrors of
/// what the guest itself switched on), and the names of the bits from 0 up.
struct Word(u32, u32, Register, u32, &'static [&'static str]);

/// OSXSAVE follows CR4, MONITOR follows IA32_MISC_ENABLE.
const LEAF_1_ECX_DYNAMIC: u32 = 1 << 27 | 1 << 3;
/// APIC follows its base MSR, HTT is topology.
const LEAF_1_EDX_DYNAMIC: u32 = 1 << 9 | 1 << 28;
/// OSPKE follows CR4.
const LEAF_7_ECX_DYNAMIC: u32 = 1 << 4;
/// CMP_LEGACY is topology.
const LEAF_8000_0001_ECX_DYNAMIC: u32 = 1 << 1;

const WORDS: &[Word] = &[
    Word(
        1,
        0,
        Ecx,
        LEAF_1_ECX_DYNAMIC,
        &[
            "sse3",
            "pclmulqdq",
            "dtes64",
            "monitor",
            "ds_cpl",
            "vmx",
            "smx",
            "est",
            "tm2",
            "ssse3",
            "cid",
            "sdbg",
            "fma",
            "cx16",
            "xtpr",
            "pdcm",
            "",
            "pcid",
            "dca",
            "sse4_1",
            "sse4_2",
            "x2apic",
            "movbe",
            "popcnt",
            "tsc_deadline_timer",
            "aes",
            "xsave",
            "osxsave",
            "avx",
            "f16c",
            "rdrand",
            "hypervisor",
        ],
    ),
    Word(
        1,
        0,
        Edx,
        LEAF_1_EDX_DYNAMIC,
        &[
            "fpu", "vme", "de", "pse", "tsc", "msr", "pae", "mce", "cx8", "apic", "", "sep", "mtrr", "pge",
            "mca", "cmov", "pat", "pse36", "pn", "clflush", "", "dts", "acpi", "mmx", "fxsr", "sse", "sse2",
            "ss", "ht", "tm", "ia64", "pbe",
        ],
    ),
    Word(6, 0, Eax, 0, &["", "", "arat"]),
    Word(
        7,
        0,
        Ebx,
        0,
        &[
            "fsgsbase",
            "tsc_adjust",
            "sgx",
            "bmi1",
            "hle",
            "avx2",
            "",
            "smep",
            "bmi2",
            "erms",
            "invpcid",
            "rtm",
            "cqm",
            "",
            "mpx",
            "rdt_a",
            "avx512f",
            "avx512dq",
            "rdseed",
            "adx",
            "smap",
            "avx512ifma",
            "",
            "clflushopt",
            "clwb",
            "intel_pt",
            "avx512pf",
            "avx512er",
            "avx512cd",
            "sha_ni",
            "avx512bw",
            "avx512vl",
        ],
    ),
    Word(
        7,
        0,
        Ecx,
        LEAF_7_ECX_DYNAMIC,
        &[
            "prefetchwt1",
            "avx512vbmi",
            "umip",
            "pku",
            "ospke",
            "waitpkg",
            "avx512_vbmi2",
            "shstk",
            "gfni",
            "vaes",
            "vpclmulqdq",
            "avx512_vnni",
            "avx512_bitalg",
            "tme",
            "avx512_vpopcntdq",
            "",
            "la57",
            "",
            "",
            "",
            "",
            "",
            "rdpid",
            "",
            "bus_lock_detect",
            "cldemote",
            "",
            "movdiri",
            "movdir64b",
            "enqcmd",
            "sgx_lc",
            "pks",
        ],
    ),
    Word(
        7,
        0,
        Edx,
        0,
        &[
            "",
            "",
            "avx512_4vnniw",
            "avx512_4fmaps",
            "fsrm",
            "uintr",
            "",
            "",
            "avx512_vp2intersect",
            "srbds_ctrl",
            "md_clear",
            "",
            "",
            "",
            "serialize",
            "",
            "tsxldtrk",
            "",
            "arch_lbr",
            "",
            "ibt",
            "",
            "amx_bf16",
            "avx512_fp16",
            "amx_tile",
            "amx_int8",
            "spec_ctrl",
            "intel_stibp",
            "flush_l1d",
            "arch_capabilities",
            "core_capabilities",
            "spec_ctrl_ssbd",
        ],
    ),
    Word(7, 1, Eax, 0, &["", "", "", "", "avx_vnni", "avx512_bf16"]),
    Word(7, 1, Ebx, 0, &[]),
    Word(7, 1, Edx, 0, &[]),
    Word(
        0xd,
        0,
        Eax,
        0,
        &[
            "x87 state",
            "sse state",
            "avx state",
            "bndregs state",
            "bndcsr state",
            "opmask state",
            "zmm_hi256 state",
            "hi16_zmm state",
            "",
            "pkru state",
        ],
    ),
    Word(0xd, 0, Edx, 0, &[]),
    Word(0xd, 1, Eax, 0, &["xsaveopt", "xsavec", "xgetbv1", "xsaves", "xfd"]),
    Word(
        0x4000_0001,
        0,
        Eax,
        0,
        &[
            "kvm clocksource",
            "kvm nop_io_delay",
            "kvm mmu_op",
            "kvm clocksource2",
            "kvm async_pf",
            "kvm steal_time",
            "kvm pv_eoi",
            "kvm pv_unhalt",
            "",
            "kvm pv_tlb_flush",
            "kvm async_pf_vmexit",
            "kvm pv_send_ipi",
            "kvm poll_control",
            "kvm pv_sched_yield",
            "kvm async_pf_int",
            "kvm msi_ext_dest_id",
            "kvm hc_map_gpa_range",
            "kvm migration_control",
            "",
            "",
            "",
            "",
            "",
            "",
            "kvm clocksource_stable",
        ],
    ),
    Word(
        0x8000_0001,
        0,
        Ecx,
        LEAF_8000_0001_ECX_DYNAMIC,
        &[
            "lahf_lm",
            "cmp_legacy",
            "svm",
            "extapic",
            "cr8_legacy",
            "abm",
            "sse4a",
            "misalignsse",
            "3dnowprefetch",
            "osvw",
            "ibs",
            "xop",
            "skinit",
            "wdt",
            "",
            "lwp",
            "fma4",
            "tce",
            "",
            "nodeid_msr",
            "",
            "tbm",
            "topoext",
            "perfctr_core",
            "perfctr_nb",
            "",
            "bpext",
            "ptsc",
            "perfctr_llc",
            "mwaitx",
        ],
    ),
    Word(
        0x8000_0001,
        0,
        Edx,
        LEAF_1_EDX_DYNAMIC & 1 << 9,
        &[
            "", "", "", "", "", "", "", "", "", "", "", "syscall", "", "", "", "", "", "", "", "mp", "nx",
            "", "mmxext", "", "", "fxsr_opt", "pdpe1gb", "rdtscp", "", "lm", "3dnowext", "3dnow",
        ],
    ),
    Word(0x8000_0007, 0, Edx, 0, &["", "", "", "", "", "", "", "", "constant_tsc"]),
    Word(
        0x8000_0008,
        0,
        Ebx,
        0,
        &[
            "clzero",
            "irperf",
            "xsaveerptr",
            "",
            "rdpru",
            "",
            "",
            "",
            "",
            "wbnoinvd",
            "",
            "",
            "amd_ibpb",
            "",
            "amd_ibrs",
            "amd_stibp",
            "",
            "",
            "",
            "",
            "",
            "",
            "",
            "",
            "amd_ssbd",
            "virt_ssbd",
            "amd_ssb_no",
        ],
    ),
];

fn value(entries: &[CpuidEntry], word: &Word) -> u32 {
    let entry = entries.iter().find(|e| e.function == word.0 && e.index == word.1);
    entry.map_or(0, |e| match word.2 {
        Eax => e.eax,
        Ebx => e.ebx,
        Ecx => e.ecx,
        Edx => e.edx,
    })
}

/// Names of the features set in `shown` (a guest's leaves) and not in `supported` (a host's).
#[must_use]
pub fn missing(shown: &[CpuidEntry], supported: &[CpuidEntry]) -> Vec<String> {
    let mut names = Vec::new();
    for word in WORDS {
        let lacking = value(shown, word) & !value(supported, word) & !word.3;
        for bit in (0..32).filter(|bit| lacking >> bit & 1 == 1) {
            names.push(match word.4.get(bit) {
                Some(name) if !name.is_empty() => (*name).to_owned(),
                _ => {
                    let register = ["EAX", "EBX", "ECX", "EDX"][word.2 as usize];
                    format!("CPUID leaf {:#x}.{} {register} bit {bit}", word.0, word.1)
                }
            });
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_the_host_lacks_and_nothing_else() {
        let host = [CpuidEntry { function: 7, ebx: 1 << 5, ..Default::default() }];
        let guest = [
            CpuidEntry { function: 7, ebx: 1 << 5 | 1 << 16, ecx: 1 << 4, ..Default::default() },
            CpuidEntry { function: 1, ecx: 1 << 27 | 1 << 28, edx: 1 << 28, ..Default::default() },
            CpuidEntry { function: 7, index: 1, edx: 1 << 4, ..Default::default() },
        ];
        assert_eq!(missing(&guest, &host), ["avx", "avx512f", "CPUID leaf 0x7.1 EDX bit 4"]);
        assert!(missing(&guest, &guest).is_empty());
    }
}
