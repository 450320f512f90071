//! A process prepares a VM (`--prewarm`) before it knows which snapshot will run in it.

use std::fs;

use volt_tests::{Guest, Outcome, consecutive, needs, wait_until};

use crate::snapshot::restoring::{counting, goes_on_from};

/// Waits for this many [`vcpu_threads`] and returns them. A thread has no name before it first runs.
fn ready_vcpu_threads(guest: &Guest, count: usize) -> Vec<String> {
    wait_until("the VM is ready", || vcpu_threads(guest).len() == count);
    vcpu_threads(guest)
}

/// Lists the ids of the vCPU threads of a guest's process.
fn vcpu_threads(guest: &Guest) -> Vec<String> {
    let tasks = format!("/proc/{}/task", guest.pid());
    let mut ids = volt_tests::scratch::list(tasks.as_ref());
    ids.retain(|id| {
        fs::read_to_string(format!("{tasks}/{id}/comm")).is_ok_and(|name| name.starts_with("volt-vcpu"))
    });
    ids
}

fn load(guest: &Guest, directory: &std::path::Path) -> (u16, String) {
    let request = format!(r#"{{"snapshot_path":{directory:?},"resume_vm":true}}"#);
    guest.ask("PUT", "/snapshot/load", &request)
}

#[test]
fn snapshot_of_the_shape_runs_in_the_prewarmed_vm() {
    needs!(kvm);
    let (snapshot, before) = counting(4);
    let mut guest = Guest::waiting_with(&["--prewarm", "64M"]);
    assert!(guest.ask("GET", "/", "").1.contains(r#""state":"Not started""#));
    let ready = ready_vcpu_threads(&guest, 1);
    // A failed load leaves the VM ready.
    let (status, why) = load(&guest, "/nowhere/at all".as_ref());
    assert!(status == 400 && why.contains("no such directory"), "{why}");
    assert_eq!(vcpu_threads(&guest), ready);
    assert_eq!(load(&guest, snapshot.directory()), (204, String::new()));
    goes_on_from(&before, &mut guest);
    assert_eq!(vcpu_threads(&guest), ready, "another VM was made");
}

#[test]
fn snapshot_of_another_shape_runs_in_a_new_vm() {
    needs!(kvm);
    let (snapshot, before) = counting(4);
    for (shape, vcpus) in [("128M", 1), ("64M,vcpus=2", 2), ("64M,irqchip=kernel", 1)] {
        let mut guest = Guest::waiting_with(&["--prewarm", shape]);
        assert!(guest.ask("GET", "/", "").1.contains("Not started"));
        let ready = ready_vcpu_threads(&guest, vcpus);
        assert_eq!(load(&guest, snapshot.directory()), (204, String::new()), "{shape}");
        goes_on_from(&before, &mut guest);
        let now = vcpu_threads(&guest);
        assert!(now.len() == 1 && !ready.contains(&now[0]), "{shape}: {ready:?}, then {now:?}");
    }
}

#[test]
fn boot_drops_the_prewarmed_vm() {
    needs!(kvm);
    let mut guest = Guest::waiting_with(&["--prewarm", "64M"]);
    let kernel = volt_tests::small_guest();
    let config = format!(r#"{{"boot":{{"kernel":{kernel:?},"cmdline":"count"}},"memory_mib":64}}"#);
    assert_eq!(guest.ask("PUT", "/v1/boot", &config), (204, String::new()));
    guest.wait_for("count 3");
    guest.pause();
    consecutive(&guest.settled_output(), "count");
    assert_eq!(vcpu_threads(&guest).len(), 1, "the prewarmed VM is still there");
}

#[test]
fn impossible_shape_is_refused() {
    for (words, complaint) in [
        (vec!["--prewarm", "64M"], "--api-socket"),
        (vec!["--api-socket", "/a", "--prewarm", "64X"], "the unit must be"),
        (vec!["--api-socket", "/a", "--prewarm", "64M,vcpus=99"], "1 to 32"),
        (vec!["--api-socket", "/a", "--prewarm", "64M", "--restore", "/s"], "cannot be used with"),
    ] {
        let outcome = Outcome::of(&words);
        assert!(outcome.status == 2 && outcome.stderr.contains(complaint), "{words:?}: {outcome:?}");
    }
}
