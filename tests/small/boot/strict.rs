//! `--confine strict` isolates the process of a VM.

use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use volt_tests::{Boot, Guest, Outcome, needs, wait_until};

/// Kinds of namespaces, as in `/proc/PID/ns`.
const KINDS: [&str; 7] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];

/// Returns the VM's process, the child of the one that was started.
fn vm_of(guest: &Guest) -> u32 {
    let of_keeper = fs::read_to_string(format!("/proc/{0}/task/{0}/children", guest.pid())).unwrap();
    let has_namespace = |pid: &u32| namespace(*pid, "pid") != namespace(std::process::id(), "pid");
    let mut children = of_keeper.split_whitespace().map(|pid| pid.parse().unwrap());
    children.find(has_namespace).expect("the started process keeps the VM's")
}

fn namespace(pid: u32, kind: &str) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap()
}

fn strict(more: &[&str]) -> Guest {
    let strict = ["--confine", "strict"].iter().chain(more).copied();
    let mut guest = Boot::small("count").vcpus(2).device(strict).start();
    guest.next_number("count");
    guest
}

fn assert_isolated(guest: &Guest) {
    let vm = vm_of(guest);
    for kind in KINDS {
        let own = namespace(std::process::id(), kind);
        assert_ne!(namespace(vm, kind), own, "{kind}");
    }
    let status = fs::read_to_string(format!("/proc/{vm}/status")).unwrap();
    assert!(status.lines().any(|line| line == "CapEff:\t0000000000000000"), "{status}");
    let map = fs::read_to_string(format!("/proc/{vm}/uid_map")).unwrap();
    let user = rustix::process::geteuid().as_raw().to_string();
    assert_eq!(map.split_whitespace().collect::<Vec<_>>(), [&user, &user, "1"]);
}

#[test]
fn strict_process_has_namespaces_of_its_own_and_no_capability() {
    needs!(kvm, root);
    let guest = strict(&["--rng"]);
    assert_isolated(&guest);
    let outcome = Outcome::of(["doctor", "--security", guest.socket().to_str().unwrap(), "--json"]);
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(report["pid"], vm_of(&guest), "{report}");
    let snapshot = guest.snapshot();
    let mut clone = snapshot.restore_as(&["--confine", "strict"]);
    clone.next_number("count");
    assert_isolated(&clone);
}

#[test]
fn end_and_signals_of_a_strict_guest_are_those_of_its_process() {
    needs!(kvm, root);
    let mut guest = strict(&[]);
    let vm = vm_of(&guest);
    guest.signal(Signal::TERM);
    assert_eq!(guest.wait_exit().status, 128 + 15);
    wait_until("the VM's process ended", || !fs::exists(format!("/proc/{vm}")).unwrap());
    let mut guest = strict(&[]);
    let vm = vm_of(&guest);
    guest.signal(Signal::KILL);
    guest.wait_exit();
    wait_until("the VM ended with its keeper", || !fs::exists(format!("/proc/{vm}")).unwrap());
}
