//! Every part of a vCPU's state and the VM's clock comes back, whether or not the guest would notice its
//! loss.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use volt_tests::{Boot, IRQCHIPS, KvmShim, Snapshot, kvm_shim, needs};
use volt_vmm::{Pool, RestoreOptions, Store, VmShape};

/// What `snapshot` holds once it was restored, without running, and saved again.
fn saved_again(snapshot: &Snapshot) -> Value {
    snapshot.restore_as(&["--paused"]).snapshot().state()
}

#[test]
fn a_vcpu_that_did_not_run_since_its_restore_is_saved_as_it_was() {
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

/// In a VM from a pool most of the state is there before the restore, and events are not.
#[test]
fn a_vcpu_from_a_pool_is_saved_as_it_was() {
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
    // The first VM is empty, the others have been prepared for the state that came before.
    for round in 0..3 {
        pool.wait_ready().unwrap();
        let options =
            RestoreOptions { pool: Some(Arc::clone(&pool)), resume: false, ..RestoreOptions::default() };
        let vm = opened.restore_with(options).unwrap();
        let again = format!("{name}-{round}");
        vm.snapshot(&store, &again).unwrap();
        let again = Snapshot::at(snapshot.directory().with_file_name(again), &scratch);
        assert_eq!(vcpus(again.state()), before, "round {round}");
    }
}

/// Gives the second vCPU what no guest here has by itself: an NMI on its way into a vCPU that takes none now.
fn hold_nmi_pending(snapshot: &Snapshot) {
    const VALID_NMI_PENDING: u64 = 1;
    snapshot.edit(|state| {
        let events = &mut state["machine"]["vcpus"][1]["events"];
        events["nmi"] = json!({ "injected": 0, "pending": 1, "masked": 1 });
        events["flags"] = (events["flags"].as_u64().unwrap() | VALID_NMI_PENDING).into();
    });
}

/// The state of each vCPU, without what goes on by itself.
fn vcpus(mut state: Value) -> Vec<Value> {
    let mut vcpus = state["machine"]["vcpus"].as_array_mut().unwrap().split_off(0);
    vcpus.iter_mut().for_each(without_time);
    vcpus
}

/// Takes out what goes on by itself.
fn without_time(vcpu: &mut Value) {
    let vcpu = vcpu.as_object_mut().unwrap();
    vcpu.remove("tsc_offset");
    vcpu["msrs"].as_object_mut().unwrap().retain(|key, _| !key.starts_with("0x10 "));
}

#[test]
fn the_guests_clock_goes_on_from_where_it_stood_however_long_that_was_ago() {
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
    let moved = Duration::from_nanos(restored.checked_sub(saved).expect("it does not go back"));
    assert!(moved < HOUR / 2, "the clock leapt by {moved:?}");
}

#[test]
fn a_guest_is_told_of_every_pause() {
    needs!(kvm);
    let mut guest = Boot::small("stopped").start();
    guest.wait_for("ready");
    for times in 1..=2 {
        guest.pause();
        guest.resume();
        assert_eq!(guest.type_in("?").next_number("stopped"), times, "pauses that the guest was told of");
    }
    let mut restored = guest.snapshot().restore();
    assert_eq!(restored.type_in("?").next_number("stopped"), 3, "a restore is told as a pause is");
}

#[test]
fn a_guest_without_kvmclock_is_told_nothing_and_runs() {
    needs!(kvm);
    let shim = KvmShim::new().refuses(kvm_shim::KVMCLOCK_CTRL, libc::EINVAL);
    Boot::small("count").on(&shim).start().next_number("count");
    let shim = KvmShim::new().refuses(kvm_shim::KVMCLOCK_CTRL, libc::EIO);
    let refused = Boot::small("count").on(&shim).outcome();
    assert!(refused.status == 1 && refused.stderr.contains("KVM_KVMCLOCK_CTRL"), "{refused:?}");
}
