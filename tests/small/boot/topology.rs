//! Threads of a core, as `smt` asks for them: in the leaves of each vCPU, and as a guest sees them.

use serde_json::{Value, json};
use volt_tests::cpu::seen_cpu;
use volt_tests::{Guest, needs, small_guest};

/// The extended topology, whose index 0 has the threads of a core.
const EXTENDED: u32 = 0xb;
/// AMD's core of a vCPU, with its threads less one.
const AMD_CORE: u32 = 0x8000_001e;

/// Boots a guest by Firecracker's requests, which tells a leaf of CPUID.
fn boot(vcpus: u32, smt: Option<bool>, leaf: u32) -> Guest {
    let mut guest = Guest::waiting();
    let mut machine = json!({"vcpu_count": vcpus, "mem_size_mib": 64});
    if let Some(smt) = smt {
        machine["smt"] = smt.into();
    }
    for (path, body) in [
        (
            "/boot-source",
            json!({"kernel_image_path": small_guest(), "boot_args": format!("cpu leaf={leaf}")}),
        ),
        ("/machine-config", machine),
        ("/actions", json!({"action_type": "InstanceStart"})),
    ] {
        assert_eq!(guest.ask("PUT", path, &body.to_string()), (204, String::new()), "{path} {body}");
    }
    guest.wait_for("ready");
    guest
}

/// The registers EBX and EDX of a leaf's index 0 of each vCPU, by its snapshot. Nothing if no vCPU has the
/// leaf. One that has only zeros is left out of a snapshot.
fn leaves(state: &Value, function: u32) -> Vec<(u64, u64)> {
    let of_vcpu = |vcpu: &Value| {
        let leaves = vcpu["cpuid"].as_array().unwrap();
        let leaf = leaves.iter().find(|leaf| leaf["function"] == function && leaf["index"] == 0)?;
        Some((leaf["ebx"].as_u64().unwrap(), leaf["edx"].as_u64().unwrap()))
    };
    let found: Vec<_> = state["machine"]["vcpus"].as_array().unwrap().iter().map(of_vcpu).collect();
    if found.iter().all(Option::is_none) {
        return Vec::new();
    }
    found.into_iter().map(Option::unwrap_or_default).collect()
}

#[test]
fn smt_pairs_the_vcpus_in_their_leaves() {
    needs!(kvm);
    for (vcpus, smt, threads) in [(4, Some(true), 2), (4, Some(false), 1), (4, None, 1), (1, Some(true), 1)] {
        let guest = boot(vcpus, smt, 1);
        let state = guest.snapshot().state();
        let (extended, amd) = (leaves(&state, EXTENDED), leaves(&state, AMD_CORE));
        assert!(!extended.is_empty() || !amd.is_empty(), "this KVM tells no topology: {state}");
        for (id, (logical, of_vcpu)) in extended.iter().enumerate() {
            assert_eq!((*logical, *of_vcpu), (threads, id as u64), "{vcpus} vCPUs, smt {smt:?}");
        }
        for (id, (core, _)) in amd.iter().enumerate() {
            let (number, others) = (core & 0xff, core >> 8 & 0xff);
            assert_eq!((number, others), (id as u64 / threads, threads - 1), "{vcpus} vCPUs, smt {smt:?}");
        }
        let machine: Value = serde_json::from_str(&guest.ask("GET", "/machine-config", "").1).unwrap();
        assert_eq!(machine["smt"], smt.unwrap_or(false), "{machine}");
    }
}

#[test]
fn guest_sees_two_threads_of_a_core_with_smt() {
    needs!(kvm, cpuid);
    for (smt, threads) in [(true, 2), (false, 1)] {
        let mut guest = boot(2, Some(smt), 1);
        let [_, ebx, _, edx] = seen_cpu(&mut guest, false).registers;
        assert!(ebx >> 16 & 0xff == 2 && edx >> 28 & 1 == 1, "two logical processors: {ebx:#x} {edx:#x}");
        // Each vendor has one of these at least.
        let [_, extended, ..] = seen_cpu(&mut boot(2, Some(smt), EXTENDED), false).registers;
        let [_, core, ..] = seen_cpu(&mut boot(2, Some(smt), AMD_CORE), false).registers;
        assert!(extended == threads || extended == 0, "smt {smt}: leaf 0xb has {extended}");
        let others = core >> 8 & 0xff;
        let has_amd = core != 0 || extended == 0;
        assert!(!has_amd || others == threads - 1, "smt {smt}: leaf 0x8000001e has {core:#x}");
        // The guest of a restore sees the same.
        let restored = guest.snapshot().restore();
        let machine: Value = serde_json::from_str(&restored.ask("GET", "/machine-config", "").1).unwrap();
        assert_eq!(machine["smt"], smt, "{machine}");
    }
}
