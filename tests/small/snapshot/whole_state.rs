//! Each part of a vCPU's state and the VM's clock are restored, even parts whose loss no guest would notice.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use volt_tests::{Boot, IRQCHIPS, KvmShim, Snapshot, kvm_shim, needs};
use volt_vmm::{Pool, RestoreOptions, Store, VmShape};

/// Restores `snapshot` without running it and returns the state of a new snapshot.
fn saved_again(snapshot: &Snapshot) -> Value {
    snapshot.restore_as(&["--paused"]).snapshot().state()
}

#[test]
fn restored_vcpu_that_did_not_run_is_saved_unchanged() {
    needs!(kvm);
    for irqchip in IRQCHIPS {
        let mut guest = Boot::small("special").vcpus(2).irqchip(irqchip).start();
        guest.next_number("round");
        let snapshot = guest.snapshot();
        drop(guest);
        hold_nmi_pending(&snapshot);
        let (before, after) = (vcpus(snapshot.state()), vcpus(saved_again(&snapshot)));
        let nmi = &after[1]["events"]["nmi"];
        assert_eq!((&nmi["pending"], &nmi["masked"]), (&json!(1), &json!(1)));
        for (before, after) in before.iter().zip(&after) {
            for (part, value) in before.as_object().unwrap() {
                assert_eq!(value, &after[part], "{irqchip}: {part}");
            }
        }
    }
}

/// A pooled VM has most of the state before the restore, but no events.
#[test]
fn pooled_vcpu_that_did_not_run_is_saved_unchanged() {
    needs!(kvm);
    let mut guest = Boot::small("special").vcpus(2).start();
    guest.next_number("round");
    let (snapshot, scratch) = (guest.snapshot(), guest.scratch().clone());
    drop(guest);
    hold_nmi_pending(&snapshot);
    let before = vcpus(snapshot.state());
    let (store, name) = Store::split(snapshot.directory()).unwrap();
    let opened = volt_vmm::Snapshot::open(&store, &name).unwrap();
    let pool = Arc::new(Pool::new(VmShape::of(opened.config()), 1).unwrap());
    // The first VM is empty, and the others are prepared with the previous state.
    for round in 0..3 {
        pool.wait_ready().unwrap();
        let options = RestoreOptions::default().pool(Arc::clone(&pool)).paused();
        let vm = opened.restore_with(options).unwrap();
        let again = format!("{name}-{round}");
        vm.snapshot(&store, &again).unwrap();
        let again = Snapshot::at(snapshot.directory().with_file_name(again), &scratch);
        assert_eq!(vcpus(again.state()), before, "round {round}");
    }
}

/// Gives the second vCPU a pending NMI while NMIs are masked, which no guest here has by itself.
fn hold_nmi_pending(snapshot: &Snapshot) {
    const VALID_NMI_PENDING: u64 = 1;
    snapshot.edit(|state| {
        let events = &mut state["machine"]["vcpus"][1]["events"];
        events["nmi"] = json!({ "injected": 0, "pending": 1, "masked": 1 });
        events["flags"] = (events["flags"].as_u64().unwrap() | VALID_NMI_PENDING).into();
    });
}

/// Returns the state of each vCPU without its running time.
fn vcpus(mut state: Value) -> Vec<Value> {
    let mut vcpus = state["machine"]["vcpus"].as_array_mut().unwrap().split_off(0);
    vcpus.iter_mut().for_each(without_time);
    vcpus
}

/// Removes the TSC and its offset.
fn without_time(vcpu: &mut Value) {
    let vcpu = vcpu.as_object_mut().unwrap();
    vcpu.remove("tsc_offset");
    vcpu["msrs"].as_object_mut().unwrap().retain(|key, _| !key.starts_with("0x10 "));
}

#[test]
fn guest_clock_continues_whatever_the_age_of_the_snapshot() {
    needs!(kvm);
    const HOUR: Duration = Duration::from_hours(1);
    const REALTIME_AND_TSC_STABLE: u32 = 1 << 2 | 1 << 1;
    let mut guest = Boot::small("count").start();
    guest.next_number("count");
    let snapshot = guest.snapshot();
    drop(guest);
    let mut saved = 0;
    snapshot.edit(|state| {
        let clock = &mut state["machine"]["clock"];
        saved = clock["clock"].as_u64().unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        clock["realtime"] = ((now - HOUR).as_nanos() as u64).into();
        clock["flags"] = REALTIME_AND_TSC_STABLE.into();
    });
    let restored = saved_again(&snapshot)["machine"]["clock"]["clock"].as_u64().unwrap();
    let moved = Duration::from_nanos(restored.checked_sub(saved).expect("the clock went back"));
    assert!(moved < HOUR / 2, "the clock leapt by {moved:?}");
}

#[test]
fn guest_is_told_of_each_pause() {
    needs!(kvm);
    let mut guest = Boot::small("stopped").start();
    guest.wait_for("ready");
    for times in 1..=2 {
        guest.pause();
        guest.resume();
        assert_eq!(guest.type_in("?").next_number("stopped"), times, "the guest was not told of a pause");
    }
    let mut restored = guest.snapshot().restore();
    assert_eq!(restored.type_in("?").next_number("stopped"), 3, "the guest was not told of the restore");
}

#[test]
fn guest_without_kvmclock_runs_untold() {
    needs!(kvm);
    let shim = KvmShim::new().refuses(kvm_shim::KVMCLOCK_CTRL, libc::EINVAL);
    Boot::small("count").on_kvm(&shim).start().next_number("count");
    let shim = KvmShim::new().refuses(kvm_shim::KVMCLOCK_CTRL, libc::EIO);
    let refused = Boot::small("count").on_kvm(&shim).outcome();
    assert!(refused.status == 1 && refused.stderr.contains("KVM_KVMCLOCK_CTRL"), "{refused:?}");
}
