//! Compares the CPU features of a guest with a host's. `KVM_SET_CPUID2` refuses almost nothing: without this
//! check, a guest would hit an undefined instruction long after its restore.

use xxhash_rust::xxh3::Xxh3;

use super::CpuidEntry;
use crate::kvm::msr::Msr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CpuidRegister {
    Eax,
    Ebx,
    Ecx,
    Edx,
}
use CpuidRegister::{Eax, Ebx, Ecx, Edx};

impl CpuidRegister {
    fn of(self, entry: &CpuidEntry) -> u32 {
        match self {
            Eax => entry.eax,
            Ebx => entry.ebx,
            Ecx => entry.ecx,
            Edx => entry.edx,
        }
    }

    pub(super) fn of_mut(self, entry: &mut CpuidEntry) -> &mut u32 {
        match self {
            Eax => &mut entry.eax,
            Ebx => &mut entry.ebx,
            Ecx => &mut entry.ecx,
            Edx => &mut entry.edx,
        }
    }
}

/// A register of feature bits: leaf, subleaf, register, bits that are no features of the host (topology, or
/// settings of the guest), and names of the bits.
struct FeatureWord(u32, u32, CpuidRegister, u32, Names);

/// Names of consecutive bits, with the number of the first bit. Other bits have no name.
type Names = &'static [(usize, &'static [&'static str])];

fn name(names: Names, bit: usize) -> Option<&'static str> {
    names.iter().find_map(|(first, names)| names.get(bit.checked_sub(*first)?)).copied()
}

/// OSXSAVE follows CR4, MONITOR follows IA32_MISC_ENABLE.
const LEAF_1_ECX_DYNAMIC: u32 = 1 << 27 | 1 << 3;
/// APIC follows its base MSR, HTT is topology.
const LEAF_1_EDX_DYNAMIC: u32 = 1 << 9 | 1 << 28;
/// OSPKE follows CR4.
const LEAF_7_ECX_DYNAMIC: u32 = 1 << 4;
/// CMP_LEGACY is topology.
const LEAF_8000_0001_ECX_DYNAMIC: u32 = 1 << 1;

/// A version number, compared in [`LEVELS`].
const AVX10_VERSION: u32 = 0xff;
const AVX10_LENGTHS: Names = &[(16, &["avx10_128", "avx10_256", "avx10_512"])];

const WORDS: &[FeatureWord] = &[
    FeatureWord(
        1,
        0,
        Ecx,
        LEAF_1_ECX_DYNAMIC,
        &[
            (
                0,
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
                ],
            ),
            (
                17,
                &[
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
        ],
    ),
    FeatureWord(
        1,
        0,
        Edx,
        LEAF_1_EDX_DYNAMIC,
        &[
            (0, &["fpu", "vme", "de", "pse", "tsc", "msr", "pae", "mce", "cx8", "apic"]),
            (11, &["sep", "mtrr", "pge", "mca", "cmov", "pat", "pse36", "pn", "clflush"]),
            (21, &["dts", "acpi", "mmx", "fxsr", "sse", "sse2", "ss", "ht", "tm", "ia64", "pbe"]),
        ],
    ),
    FeatureWord(6, 0, Eax, 0, &[(2, &["arat"])]),
    FeatureWord(
        7,
        0,
        Ebx,
        0,
        &[
            (0, &["fsgsbase", "tsc_adjust", "sgx", "bmi1", "hle", "avx2"]),
            (7, &["smep", "bmi2", "erms", "invpcid", "rtm", "cqm"]),
            (14, &["mpx", "rdt_a", "avx512f", "avx512dq", "rdseed", "adx", "smap", "avx512ifma"]),
            (
                23,
                &[
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
        ],
    ),
    FeatureWord(
        7,
        0,
        Ecx,
        LEAF_7_ECX_DYNAMIC,
        &[
            (
                0,
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
                ],
            ),
            (16, &["la57"]),
            (22, &["rdpid"]),
            (24, &["bus_lock_detect", "cldemote"]),
            (27, &["movdiri", "movdir64b", "enqcmd", "sgx_lc", "pks"]),
        ],
    ),
    FeatureWord(
        7,
        0,
        Edx,
        0,
        &[
            (2, &["avx512_4vnniw", "avx512_4fmaps", "fsrm", "uintr"]),
            (8, &["avx512_vp2intersect", "srbds_ctrl", "md_clear"]),
            (14, &["serialize"]),
            (16, &["tsxldtrk"]),
            (18, &["arch_lbr"]),
            (20, &["ibt"]),
            (
                22,
                &[
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
        ],
    ),
    FeatureWord(
        7,
        1,
        Eax,
        0,
        &[
            (
                0,
                &[
                    "sha512",
                    "sm3",
                    "sm4",
                    "rao_int",
                    "avx_vnni",
                    "avx512_bf16",
                    "lass",
                    "cmpccxadd",
                    "arch_perfmon_ext",
                ],
            ),
            (10, &["fzrm", "fsrs", "fsrc"]),
            (17, &["fred", "lkgs", "wrmsrns", "nmi_source", "amx_fp16", "hreset", "avx_ifma"]),
            (26, &["lam", "msrlist"]),
        ],
    ),
    FeatureWord(7, 1, Ebx, 0, &[]),
    FeatureWord(7, 1, Ecx, 0, &[(5, &["msr_imm"])]),
    FeatureWord(
        7,
        1,
        Edx,
        0,
        &[
            (4, &["avx_vnni_int8", "avx_ne_convert"]),
            (8, &["amx_complex"]),
            (10, &["avx_vnni_int16"]),
            (14, &["prefetchiti", "user_msr"]),
            (18, &["cet_sss", "avx10"]),
        ],
    ),
    FeatureWord(
        7,
        2,
        Edx,
        0,
        &[(0, &["intel_psfd", "ipred_ctrl", "rrsba_ctrl", "ddpd_u", "bhi_ctrl", "mcdt_no"])],
    ),
    FeatureWord(
        0xd,
        0,
        Eax,
        0,
        &[
            (
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
                ],
            ),
            (9, &["pkru state"]),
        ],
    ),
    FeatureWord(0xa, 0, Ecx, 0, &[]),
    FeatureWord(0xd, 0, Edx, 0, &[]),
    FeatureWord(0xd, 1, Eax, 0, &[(0, &["xsaveopt", "xsavec", "xgetbv1", "xsaves", "xfd"])]),
    FeatureWord(0x24, 0, Ebx, AVX10_VERSION, AVX10_LENGTHS),
    FeatureWord(0x24, 1, Ecx, 0, &[(2, &["avx10_vnni_int"])]),
    FeatureWord(
        0x4000_0001,
        0,
        Eax,
        0,
        &[
            (
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
                ],
            ),
            (
                9,
                &[
                    "kvm pv_tlb_flush",
                    "kvm async_pf_vmexit",
                    "kvm pv_send_ipi",
                    "kvm poll_control",
                    "kvm pv_sched_yield",
                    "kvm async_pf_int",
                    "kvm msi_ext_dest_id",
                    "kvm hc_map_gpa_range",
                    "kvm migration_control",
                ],
            ),
            (24, &["kvm clocksource_stable"]),
        ],
    ),
    FeatureWord(
        0x8000_0001,
        0,
        Ecx,
        LEAF_8000_0001_ECX_DYNAMIC,
        &[
            (
                0,
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
                ],
            ),
            (15, &["lwp", "fma4", "tce"]),
            (19, &["nodeid_msr"]),
            (21, &["tbm", "topoext", "perfctr_core", "perfctr_nb"]),
            (26, &["bpext", "ptsc", "perfctr_llc", "mwaitx"]),
        ],
    ),
    FeatureWord(
        0x8000_0001,
        0,
        Edx,
        LEAF_1_EDX_DYNAMIC & 1 << 9,
        &[
            (11, &["syscall"]),
            (19, &["mp", "nx"]),
            (22, &["mmxext"]),
            (25, &["fxsr_opt", "pdpe1gb", "rdtscp"]),
            (29, &["lm", "3dnowext", "3dnow"]),
        ],
    ),
    FeatureWord(0x8000_0007, 0, Edx, 0, &[(8, &["constant_tsc"])]),
    FeatureWord(
        0x8000_0008,
        0,
        Ebx,
        0,
        &[
            (0, &["clzero", "irperf", "xsaveerptr"]),
            (4, &["rdpru"]),
            (9, &["wbnoinvd"]),
            (12, &["amd_ibpb"]),
            (14, &["amd_ibrs", "amd_stibp"]),
            (24, &["amd_ssbd", "virt_ssbd", "amd_ssb_no"]),
        ],
    ),
    FeatureWord(
        0x8000_0021,
        0,
        Eax,
        0,
        &[
            (0, &["no_nested_data_bp", "fsgs_base_non_serializing", "lfence_rdtsc"]),
            (5, &["verw_clear", "null_sel_clr_base"]),
            (8, &["autoibrs", "no_smm_ctl_msr", "fsrs", "fsrc"]),
            (13, &["prefetch_ctl_msr"]),
            (20, &["prefetchi"]),
            (24, &["eraps"]),
            (27, &["sbpb", "ibpb_brtype", "srso_no", "srso_user_kernel_no"]),
        ],
    ),
    FeatureWord(0x8000_0021, 0, Ecx, 0, &[(1, &["tsa_sq_no", "tsa_l1_no"])]),
    FeatureWord(0x8000_0022, 0, Eax, 0, &[(0, &["perfmon_v2", "amd_lbr_v2", "amd_lbr_pmc_freeze"])]),
];

/// A number that grows with the host's abilities: leaf, subleaf, register, bits, name.
type FeatureLevel = (u32, u32, CpuidRegister, u32, &'static str);

const LEVELS: &[FeatureLevel] = &[
    // Intel's performance counters (Intel SDM volume 2, CPUID leaf 0AH).
    (0xa, 0, Eax, 0xff, "pmu version"),
    (0xa, 0, Eax, 0xff << 8, "pmu counters"),
    (0xa, 0, Eax, 0xff << 16, "bits of a pmu counter"),
    (0xa, 0, Edx, 0x1f, "fixed pmu counters"),
    (0xa, 0, Edx, 0xff << 5, "bits of a fixed pmu counter"),
    (0x24, 0, Ebx, AVX10_VERSION, "avx10 version"),
    // AMD's performance counters (APM volume 3, E.4.26).
    (0x8000_0022, 0, Ebx, 0xf, "amd core performance counters"),
];

/// Events of Intel's counters. EAX of leaf 0xA has the number of valid bits in EBX, and each such bit marks
/// an event as missing.
const PMU_EVENTS: Names = &[(
    0,
    &[
        "pmu event core cycles",
        "pmu event instructions",
        "pmu event reference cycles",
        "pmu event llc references",
        "pmu event llc misses",
        "pmu event branches",
        "pmu event mispredicted branches",
        "pmu event topdown slots",
    ],
)];

/// Returns a bit for each event that can be counted.
fn pmu_events(entries: &[CpuidEntry]) -> u32 {
    let count = value(entries, 0xa, 0, Eax) >> 24;
    let valid = 1_u32.checked_shl(count).map_or(u32::MAX, |above| above - 1);
    valid & !value(entries, 0xa, 0, Ebx)
}

/// Returns a register of a leaf; 0 if the leaf is missing.
pub(super) fn value(entries: &[CpuidEntry], function: u32, index: u32, register: CpuidRegister) -> u32 {
    let entry = entries.iter().find(|e| (e.function, e.index) == (function, index));
    entry.map_or(0, |entry| register.of(entry))
}

/// Returns the bits of a register that are features.
pub(super) fn feature_bits(function: u32, index: u32, register: CpuidRegister) -> u32 {
    word(function, index, register).map_or(0, |FeatureWord(.., no_features, _)| !no_features)
}

/// Returns the bits of a register of features that are none.
pub(super) fn no_features(function: u32, index: u32, register: CpuidRegister) -> u32 {
    word(function, index, register).map_or(0, |FeatureWord(.., no_features, _)| *no_features)
}

fn word(function: u32, index: u32, register: CpuidRegister) -> Option<&'static FeatureWord> {
    WORDS.iter().find(|word| (word.0, word.1, word.2) == (function, index, register))
}

/// Returns the bits of each number in a register that grows with the host's abilities.
pub(super) fn level_fields(function: u32, index: u32, register: CpuidRegister) -> impl Iterator<Item = u32> {
    let levels =
        LEVELS.iter().filter(move |level| (level.0, level.1, level.2) == (function, index, register));
    levels.map(|level| level.3)
}

/// Names the features in `shown` that `supported` lacks.
pub(super) fn missing(shown: &[CpuidEntry], supported: &[CpuidEntry]) -> Vec<String> {
    let mut names = Vec::new();
    for &FeatureWord(function, index, register, no_features, known) in WORDS {
        let value = |entries| value(entries, function, index, register);
        let lacking = value(shown) & !value(supported) & !no_features;
        for bit in (0..32).filter(|bit| lacking >> bit & 1 == 1) {
            names.push(name(known, bit).map_or_else(
                || {
                    let register = ["EAX", "EBX", "ECX", "EDX"][register as usize];
                    format!("CPUID leaf {function:#x}.{index} {register} bit {bit}")
                },
                str::to_owned,
            ));
        }
    }
    for &(function, index, register, bits, name) in LEVELS {
        let level = |entries| (value(entries, function, index, register) & bits) >> bits.trailing_zeros();
        let (shown, supported) = (level(shown), level(supported));
        if shown > supported {
            names.push(format!("{name} {shown}"));
        }
    }
    let lacking = pmu_events(shown) & !pmu_events(supported);
    for bit in (0..32).filter(|bit| lacking >> bit & 1 == 1) {
        names.push(name(PMU_EVENTS, bit).map_or_else(|| format!("pmu event {bit}"), str::to_owned));
    }
    names
}

/// The registers with the vendor's name and the signature.
const IDENTITY: [(u32, CpuidRegister); 4] = [(0, Ebx), (0, Ecx), (0, Edx), (1, Eax)];

/// The version of the algorithm of [`digest`]. A new number is needed for another hash, another order, other
/// events of [`pmu_events`], or other feature MSRs.
const DIGEST_VERSION: u32 = 1;

/// Identifies the inputs of [`digest`] without their values: its version, the identity's registers and the
/// compared bits. Programs whose digests have other inputs have another value here.
pub const COVERED: u64 = covered(DIGEST_VERSION, &IDENTITY, WORDS, LEVELS);

const fn covered(
    version: u32,
    identity: &[(u32, CpuidRegister)],
    words: &[FeatureWord],
    levels: &[FeatureLevel],
) -> u64 {
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325).with(version);
    // The counts detect an entry that moves from one list to the next.
    hash = hash.with(identity.len() as u32).with(words.len() as u32).with(levels.len() as u32);
    let mut at = 0;
    while at < identity.len() {
        let (function, register) = identity[at];
        hash = hash.with(function).with(register as u32);
        at += 1;
    }
    at = 0;
    while at < words.len() {
        let FeatureWord(function, index, register, no_features, _) = words[at];
        hash = hash.with(function).with(index).with(register as u32).with(!no_features);
        at += 1;
    }
    at = 0;
    while at < levels.len() {
        let (function, index, register, bits, _) = levels[at];
        hash = hash.with(function).with(index).with(register as u32).with(bits);
        at += 1;
    }
    hash.0
}

/// FNV-1a over words, computable at compile time.
struct Fnv(u64);

impl Fnv {
    const fn with(self, word: u32) -> Self {
        Self((self.0 ^ word as u64).wrapping_mul(0x0100_0000_01b3))
    }
}

/// Returns a digest of the features that [`missing`] compares, of the CPU's vendor and signature, and of the
/// feature MSRs, as 32 hex digits. Hosts with equal digests lack none of each other's features.
pub fn digest(supported: &[CpuidEntry], msrs: &[Msr]) -> String {
    let identity = IDENTITY.iter().map(|&(function, register)| (function, 0, register, u32::MAX));
    let words = WORDS.iter().map(|word| (word.0, word.1, word.2, !word.3));
    let levels = LEVELS.iter().map(|level| (level.0, level.1, level.2, level.3));
    let mut hash = Xxh3::new();
    for (function, index, register, bits) in identity.chain(words).chain(levels) {
        let value = value(supported, function, index, register) & bits;
        for number in [function, index, register as u32, bits, value] {
            hash.update(&number.to_le_bytes());
        }
    }
    hash.update(&pmu_events(supported).to_le_bytes());
    for msr in msrs {
        hash.update(&msr.index.to_le_bytes());
        hash.update(&[msr.value.is_some().into()]);
        hash.update(&msr.value.unwrap_or(0).to_le_bytes());
    }
    format!("{:032x}", hash.digest128())
}

#[cfg(test)]
#[path = "features_tests.rs"]
mod tests;
