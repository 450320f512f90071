//! A client of Firecracker takes a snapshot in two files, and runs another VM from it.

use std::fs;

use volt_tests::needs;

use crate::jailed::Files;

#[test]
fn go_sdk_snapshots_a_vm_and_restores_another() {
    needs!(kvm, root, clients);
    let files = Files::new();
    let told = files.run("go-sdk", &["snapshot"], &[("VOLT_SECCOMP", "on")]);
    assert!(told.contains("restored in ") && told.contains("info: id=second state=Running\n"), "{told}");
    assert_eq!(told.matches("exit status 143").count(), 2, "SIGTERM ends both: {told}");
    let log = fs::read_to_string(files.scratch.path("jails").join("first.log")).unwrap();
    assert!(log.starts_with("20") && log.contains(" [first:") && log.contains("paused the guest"), "{log}");
}

#[test]
fn fctools_snapshots_a_vm_and_restores_another() {
    needs!(kvm, root, clients);
    let files = Files::new();
    let told = files.run("volt-fctools", &["snapshot"], &[]);
    assert!(told.contains("info: id=second paused=false\n"), "{told}");
    assert_eq!(told.matches("ended: ").count(), 2, "{told}");
}
