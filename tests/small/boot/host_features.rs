//! Cached features of this host's KVM are not used after KVM's module was reloaded.

use std::process::Command;

use volt_tests::{Guest, Snapshot, needs, output, wait_until};

fn snapshot() -> Snapshot {
    let mut guest = Guest::boot("count");
    guest.next_number("count");
    guest.snapshot()
}

/// Returns the digest of KVM's features at the snapshot.
fn features(snapshot: &Snapshot) -> String {
    snapshot.state()["metadata"]["host_features"].as_str().unwrap().to_owned()
}

/// Reloads kvm_amd with these parameters.
fn reload(parameters: &[&str]) {
    // The kernel may still be ending a VM.
    wait_until("kvm_amd is unloaded", || output(Command::new("rmmod").arg("kvm_amd")).status.success());
    let file = std::env::var_os("VOLT_KVM_MODULE").unwrap();
    assert!(output(Command::new("insmod").arg(file).args(parameters)).status.success());
}

/// Reloads the module without parameters when dropped.
struct Reload;

impl Drop for Reload {
    fn drop(&mut self) {
        reload(&[]);
    }
}

#[test]
fn reloaded_kvm_module_is_queried_again() {
    needs!(kvm, kvm_module);
    let with_nested = snapshot();
    assert_eq!(features(&snapshot()), features(&with_nested));
    {
        let _as_it_was = Reload;
        reload(&["nested=0"]);
        let without = snapshot();
        assert_ne!(features(&without), features(&with_nested));
        assert_eq!(features(&snapshot()), features(&without));
        // Its guest did not see the feature that is missing now.
        with_nested.restore().next_number("count");
    }
    assert_eq!(features(&snapshot()), features(&with_nested));
}
