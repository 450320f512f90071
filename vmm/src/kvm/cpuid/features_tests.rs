//! Tests of the comparison between hosts.

use super::*;

#[test]
fn exactly_the_missing_features_are_named() {
    let host = [CpuidEntry { function: 7, ebx: 1 << 5, ..Default::default() }];
    let guest = [
        CpuidEntry { function: 7, ebx: 1 << 5 | 1 << 16, ecx: 1 << 4, ..Default::default() },
        CpuidEntry { function: 1, ecx: 1 << 27 | 1 << 28, edx: 1 << 28, ..Default::default() },
        CpuidEntry { function: 7, index: 1, edx: 1 << 3, ..Default::default() },
    ];
    assert_eq!(missing(&guest, &host), ["avx", "avx512f", "CPUID leaf 0x7.1 EDX bit 3"]);
    assert!(missing(&guest, &guest).is_empty());
}

#[test]
fn newer_leaves_are_compared_too() {
    let none = |function, index| CpuidEntry { function, index, ..Default::default() };
    let host = [CpuidEntry { ebx: 1 | 1 << 16, ..none(0x24, 0) }];
    for (shown, name) in [
        (CpuidEntry { edx: 1 << 4, ..none(7, 2) }, "bhi_ctrl"),
        (CpuidEntry { ecx: 1 << 5, ..none(7, 1) }, "msr_imm"),
        (CpuidEntry { ebx: 1 | 1 << 18, ..none(0x24, 0) }, "avx10_512"),
        (CpuidEntry { ebx: 2, ..none(0x24, 0) }, "avx10 version 2"),
        (CpuidEntry { ecx: 4, ..none(0x24, 1) }, "avx10_vnni_int"),
        (CpuidEntry { eax: 1 << 8, ..none(0x8000_0021, 0) }, "autoibrs"),
        (CpuidEntry { ecx: 1 << 2, ..none(0x8000_0021, 0) }, "tsa_l1_no"),
    ] {
        assert_eq!(missing(&[shown], &host), [name]);
    }
    assert_eq!(missing(&host, &host), [] as [&str; 0]);
    assert_eq!(missing(&[CpuidEntry { ebx: 1, ..none(0x24, 0) }], &host), [] as [&str; 0]);
}

#[test]
fn performance_counters_that_the_host_lacks_are_named() {
    let intel = |eax, ebx, ecx, edx| CpuidEntry { function: 0xa, eax, ebx, ecx, edx, ..Default::default() };
    let amd = |eax, ebx| CpuidEntry { function: 0x8000_0022, eax, ebx, ..Default::default() };
    // Version 2, 8 counters of 48 bits, 7 events without LLC misses, 3 fixed counters of 48 bits. 6 counters
    // of AMD's.
    let host = [intel(0x0730_0802, 1 << 4, 0b111, 48 << 5 | 3), amd(1, 6)];
    for (shown, name) in [
        (intel(0x0730_0803, 1 << 4, 0b111, 48 << 5 | 3), "pmu version 3"),
        (intel(0x0730_0902, 1 << 4, 0b111, 48 << 5 | 3), "pmu counters 9"),
        (intel(0x0731_0802, 1 << 4, 0b111, 48 << 5 | 3), "bits of a pmu counter 49"),
        (intel(0x0730_0802, 0, 0b111, 48 << 5 | 3), "pmu event llc misses"),
        (intel(0x0830_0802, 1 << 4, 0b111, 48 << 5 | 3), "pmu event topdown slots"),
        (intel(0x0930_0802, 0x90, 0b111, 48 << 5 | 3), "pmu event 8"),
        (intel(0x0730_0802, 1 << 4, 0b1111, 48 << 5 | 3), "CPUID leaf 0xa.0 ECX bit 3"),
        (intel(0x0730_0802, 1 << 4, 0b111, 48 << 5 | 4), "fixed pmu counters 4"),
        (intel(0x0730_0802, 1 << 4, 0b111, 49 << 5 | 3), "bits of a fixed pmu counter 49"),
        (amd(2, 6), "amd_lbr_v2"),
        (amd(1, 8), "amd core performance counters 8"),
    ] {
        let names = missing(&[shown], &host);
        assert!(names.iter().any(|each| each == name), "{name}: {names:?}");
        let mut richer = host;
        *richer.iter_mut().find(|entry| entry.function == shown.function).unwrap() = shown;
        assert_ne!(digest(&richer, &[]), digest(&host, &[]), "{name}");
    }
    assert_eq!(missing(&host, &host), [] as [&str; 0]);
    // A guest with less of everything, and a guest without counters.
    assert_eq!(missing(&[intel(0x0228_0401, 1 << 4, 0b1, 40 << 5 | 1)], &host), [] as [&str; 0]);
    assert_eq!(missing(&[], &host), [] as [&str; 0]);
}

#[test]
fn hosts_with_equal_digests_have_equal_features() {
    // A further bit changes the digest exactly if it is a feature that the other host lacks.
    let digest = |host: &CpuidEntry| digest(std::slice::from_ref(host), &[]);
    for &FeatureWord(function, index, register, no_features, _) in WORDS {
        let host = CpuidEntry { function, index, ..Default::default() };
        for bit in 0..32 {
            let mut other = host;
            *register.of_mut(&mut other) = 1 << bit;
            let is_missing = !missing(&[other], &[host]).is_empty();
            assert!(is_missing || no_features >> bit & 1 == 1);
            if is_missing {
                assert_ne!(digest(&host), digest(&other), "{function:#x}.{index} bit {bit}");
            } else {
                assert_eq!(digest(&host), digest(&other), "{function:#x}.{index} bit {bit}");
            }
        }
    }
}

#[test]
fn another_level_of_a_feature_changes_the_digest() {
    for &(function, index, register, bits, name) in LEVELS {
        let of_level = |level: u32| {
            let mut host = CpuidEntry { function, index, ..Default::default() };
            *register.of_mut(&mut host) = level << bits.trailing_zeros();
            digest(&[host], &[])
        };
        assert_ne!(of_level(1), of_level(2), "{name}");
    }
}

#[test]
fn another_vendor_signature_or_msr_changes_the_digest() {
    let leaf = |function| CpuidEntry { function, ..Default::default() };
    let msr = |value| Msr { index: 0x10a, value };
    let digests = [
        digest(&[], &[]),
        digest(&[CpuidEntry { ebx: 7, ..leaf(0) }], &[]),
        digest(&[CpuidEntry { ecx: 7, ..leaf(0) }], &[]),
        digest(&[CpuidEntry { edx: 7, ..leaf(0) }], &[]),
        digest(&[CpuidEntry { eax: 7, ..leaf(1) }], &[]),
        digest(&[], &[msr(None)]),
        digest(&[], &[msr(Some(0))]),
        digest(&[], &[msr(Some(1))]),
    ];
    let different: std::collections::BTreeSet<_> = digests.iter().collect();
    assert_eq!(different.len(), digests.len());
    // The APIC id depends on the processor that answered.
    assert_eq!(digest(&[CpuidEntry { ebx: 3 << 24, ..leaf(1) }], &[]), digests[0]);
}

#[test]
fn every_input_of_the_digest_changes_covered() {
    let of = |version, identity: &[_]| covered(version, identity, WORDS, LEVELS);
    assert_eq!(of(DIGEST_VERSION, &IDENTITY), COVERED);
    let other_leaf = IDENTITY.map(|(function, register)| (function + 1, register));
    let all = [
        COVERED,
        of(DIGEST_VERSION + 1, &IDENTITY),
        of(DIGEST_VERSION, &IDENTITY[..3]),
        of(DIGEST_VERSION, &other_leaf),
        covered(DIGEST_VERSION, &IDENTITY, &WORDS[1..], LEVELS),
        covered(DIGEST_VERSION, &IDENTITY, WORDS, &LEVELS[1..]),
    ];
    for (at, one) in all.iter().enumerate() {
        assert!(!all[..at].contains(one), "{at}");
    }
}

/// A new word or level changes [`COVERED`] and the digest. A change of the digest alone needs a new
/// [`DIGEST_VERSION`]: otherwise another program on the host would accept the old digest.
#[test]
fn digest_of_this_version_is_the_same_in_every_program() {
    let entries = [
        CpuidEntry {
            function: 0,
            ebx: 0x756e_6547,
            ecx: 0x6c65_746e,
            edx: 0x4965_6e69,
            ..Default::default()
        },
        CpuidEntry { function: 1, eax: 0x000a_0f11, ecx: 1 << 28, ..Default::default() },
        CpuidEntry { function: 0xa, eax: 0x0730_0802, ebx: 1 << 4, ..Default::default() },
    ];
    let msrs = [Msr { index: 0x10a, value: Some(5) }, Msr { index: 0x345, value: None }];
    let known = (DIGEST_VERSION, COVERED, digest(&entries, &msrs));
    assert_eq!(known, (1, 10_925_766_805_275_796_509, "10a1417b453438e2e8fb52dc9f5e055e".to_owned()));
}
