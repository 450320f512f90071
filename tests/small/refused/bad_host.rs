//! Hosts without a usable KVM.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use volt_tests::namespace::Namespace;
use volt_tests::{Boot, Guest, Outcome, Scratch, needs};

/// Copies the binary to where any user may run it.
fn binary_for_everyone(scratch: &Scratch) -> std::path::PathBuf {
    let copy = scratch.path("volt-vmm");
    fs::copy(volt_tests::program::binary(), &copy).unwrap();
    for path in [scratch.directory(), &copy] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    copy
}

#[test]
fn boot_without_kvm_is_refused() {
    needs!(root);
    let words = ["/dev/kvm", "it is missing", "kvm_intel or kvm_amd"];
    Boot::small("hello").inside(&Namespace::WithoutKvm).outcome().refused(&words);
}

#[test]
fn boot_without_permission_for_kvm_is_refused() {
    needs!(root);
    let scratch = Scratch::new();
    let kernel = scratch.path("kernel");
    fs::copy(volt_tests::small_guest(), &kernel).unwrap();
    let program = binary_for_everyone(&scratch);
    let run = |mode| {
        let mut command = Command::new(&program);
        command.args(["run", "--confine", mode, "--kernel"]).arg(&kernel);
        Namespace::KvmOfAnother.apply(&mut command);
        Outcome::of_command(&mut command)
    };
    run("default").refused(&["/dev/kvm", "may not open it", "group kvm"]);
    // A warning about control groups may come before the error.
    let strict = run("strict");
    let error = strict.stderr.lines().last().unwrap_or_default();
    assert!(strict.status == 1 && error.contains("may not open it; join the group kvm"), "{strict:?}");
}

#[test]
fn restore_without_kvm_is_refused() {
    needs!(kvm, root);
    let mut guest = Guest::boot("count");
    guest.wait_for("count");
    let snapshot = guest.snapshot();
    let mut command = Command::new(volt_tests::program::binary());
    command.arg("restore").arg(snapshot.directory());
    Namespace::WithoutKvm.apply(&mut command);
    Outcome::of_command(&mut command).refused(&["/dev/kvm", "it is missing"]);
}

#[test]
fn doctor_reports_a_host_without_kvm() {
    needs!(root);
    let mut command = Command::new(volt_tests::program::binary());
    command.arg("doctor");
    Namespace::WithoutKvm.apply(&mut command);
    let report = Outcome::of_command(&mut command);
    assert!(report.status == 1 && report.stdout.contains("/dev/kvm"), "{report:?}");
    assert!(report.stdout.contains("No VM can be created on this host."), "{report:?}");
}
