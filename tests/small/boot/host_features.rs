//! The file that keeps what this host's KVM offers is not believed once KVM's module was loaded again.

use std::process::Command;

use volt_tests::{Guest, Snapshot, needs, output, wait_until};

fn snapshot() -> Snapshot {
    let mut guest = Guest::boot("count");
    guest.next_number("count");
    guest.snapshot()
}

/// The digest of what KVM offered when the snapshot was taken.
fn features(snapshot: &Snapshot) -> String {
    snapshot.state()["metadata"]["host_features"].as_str().unwrap().to_owned()
}

/// Loads kvm_amd again, with these parameters.
fn reload(parameters: &[&str]) {
    // The kernel may still be ending a VM.
    wait_until("kvm_amd is unloaded", || output(Command::new("rmmod").arg("kvm_amd")).status.success());
    let file = std::env::var_os("VOLT_KVM_MODULE").unwrap();
    assert!(output(Command::new("insmod").arg(file).args(parameters)).status.success());
}

/// Leaves the module as it was.
struct Reload;

impl Drop for Reload {
    fn drop(&mut self) {
        reload(&[]);
    }
}

#[test]
fn kvm_is_asked_again_after_its_module_was_loaded_with_another_parameter() {
    needs!(kvm, kvm_module);
    let with_nested = snapshot();
    assert_eq!(features(&snapshot()), features(&with_nested));
    {
        let _as_it_was = Reload;
        reload(&["nested=0"]);
        let without = snapshot();
        assert_ne!(features(&without), features(&with_nested));
        assert_eq!(features(&snapshot()), features(&without));
        // Its guest was not shown what is missing now.
        with_nested.restore().next_number("count");
    }
    assert_eq!(features(&snapshot()), features(&with_nested));
}
