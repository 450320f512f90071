//! A guest goes on under a KVM with fewer features, or is refused with the missing one.

use serde_json::Value;
use volt_tests::{Boot, Guest, KvmShim, Snapshot, needs};

/// Differences of TSC rates in parts per million. KVM's tolerance is 250.
const WITHIN_TOLERANCE: [i64; 2] = [-240, 240];
const BEYOND_TOLERANCE: [i64; 3] = [-260, 260, 100_000];

fn snapshot() -> Snapshot {
    let mut guest = Guest::boot("count");
    guest.next_number("count");
    guest.snapshot()
}

fn vcpu(state: &mut Value) -> &mut Value {
    &mut state["machine"]["vcpus"][0]
}

#[test]
fn snapshots_work_without_xsave2() {
    needs!(kvm);
    let shim = KvmShim::new().without_xsave2();
    let mut guest = Boot::small("special").on_kvm(&shim).start();
    guest.next_number("round");
    let old = guest.snapshot();
    drop(guest);
    let mut restored = old.restore_on(&shim, &[]);
    restored.next_number("round");
    // A snapshot taken with XSAVE2 restores without it.
    let new = old.restore().snapshot();
    for mut restored in [restored, new.restore_on(&shim, &[])] {
        restored.next_number("round");
        restored.next_number("round");
        assert!(!restored.output().contains("WRONG"), "{}", restored.output());
    }
}

#[test]
fn another_tsc_rate_is_refused_without_tsc_scaling() {
    needs!(kvm);
    let shim = KvmShim::new().without_tsc_scaling();
    let snapshot = snapshot();
    let here = vcpu(&mut snapshot.state())["tsc_khz"].as_i64().unwrap();
    let of_rate = |parts_of_a_million: i64| {
        let copy = snapshot.copy();
        let khz = here + here * parts_of_a_million / 1_000_000;
        copy.edit(|state| vcpu(state)["tsc_khz"] = khz.into());
        (copy, khz)
    };
    for difference in BEYOND_TOLERANCE {
        let (copy, khz) = of_rate(difference);
        let rates = [format!("{khz} kHz"), format!("{here} kHz")];
        copy.try_restore_on(&shim).refused(&[&rates[0], &rates[1], "scale"]);
    }
    for difference in WITHIN_TOLERANCE {
        of_rate(difference).0.restore_on(&shim, &[]).next_number("count");
    }
}

#[test]
fn unknown_msr_is_dropped_if_zero_and_refused_if_not() {
    needs!(kvm);
    const UNKNOWN: &str = "0x12345";
    let snapshot = snapshot();
    let with = |key: &str, value: u64| {
        let copy = snapshot.copy();
        copy.edit(|state| vcpu(state)["msrs"][key] = value.into());
        copy
    };
    with(UNKNOWN, 0).restore().next_number("count");
    with(UNKNOWN, 7).try_restore().refused(&["MSR 0x12345 = 0x7", "state.json"]);
    // Linux 6.3 has this register of Hyper-V, and 6.1 lacks it. The guest does not see Hyper-V.
    with("0x40000118", 0).restore().next_number("count");
    with("0x40000118", 1).restore().next_number("count");
}

#[test]
fn registers_of_hyper_v_are_not_saved_for_a_guest_without_it() {
    needs!(kvm);
    let state = snapshot().state();
    let msrs = state["machine"]["vcpus"][0]["msrs"].as_object().unwrap();
    let of_hyper_v = |key: &&String| key.starts_with("0x40000");
    assert_eq!(msrs.keys().filter(of_hyper_v).collect::<Vec<_>>(), [] as [&String; 0]);
}
