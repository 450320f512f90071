//! Both versions of firecracker-go-sdk configure a machine and drive each kind of device, and the small guest
//! behind the device answers.

use volt_tests::needs;

use crate::jailed::{Files, GO_CLIENTS, has};

/// Runs an act of each version, and checks what it tells.
fn each_tells(act: &str, words: &[&str]) {
    for client in GO_CLIENTS.into_iter().filter(|client| has(client)) {
        let files = Files::new();
        let tap = format!("g{}{}", std::process::id(), &act[..1]);
        let told = files.run(client, &[act], &[("VOLT_SECCOMP", "on"), ("VOLT_TAP", &tap)]);
        for words in words {
            assert!(told.contains(words), "{client} {act}: no {words:?} in:\n{told}");
        }
        assert_eq!(told.matches("ended: ").count(), 1, "{client} {act}: {told}");
    }
}

#[test]
fn go_sdk_configures_a_machine_and_adds_handlers_of_its_own() {
    needs!(kvm, root, clients);
    let machine = "machine: vcpus=2 memory=64 smt=true dirty=true\n";
    each_tells("handlers", &["handlers: volt.Validate volt.AfterBootSource volt.Last\n", machine]);
}

#[test]
fn go_sdk_limits_a_drive_and_replaces_its_file() {
    needs!(kvm, root, clients);
    each_tells("drives", &["drives: replaced\n"]);
}

#[test]
fn go_sdk_gives_metadata_to_a_guest_on_a_tap() {
    needs!(kvm, root, clients, network);
    each_tells("metadata", &["metadata: 200 first, then 200 second\n"]);
}

#[test]
fn go_sdk_dials_to_a_guest() {
    needs!(kvm, root, clients);
    each_tells("vsock", &["vsock: echoes from "]);
}

#[test]
fn go_sdk_inflates_a_balloon_and_reads_its_statistics() {
    needs!(kvm, root, clients);
    each_tells("balloon", &["balloon: mib=8 deflates=true interval=3\n"]);
}
