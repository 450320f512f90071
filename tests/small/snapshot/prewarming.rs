//! A process has a VM ready before anyone knows what will run in it.

use std::fs;

use volt_tests::{Guest, Outcome, consecutive, needs, wait_until};

use crate::snapshot::restoring::{counting, goes_on_from};

/// As [`vcpu_threads`], once there are so many: a thread has its name when it first runs.
fn ready_vcpu_threads(guest: &Guest, count: usize) -> Vec<String> {
    wait_until("the VM is there", || vcpu_threads(guest).len() == count);
    vcpu_threads(guest)
}

/// The ids of the threads of the vCPUs that its process has.
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
fn what_fits_runs_in_the_vm_that_was_ready() {
    needs!(kvm);
    let (snapshot, before) = counting(4);
    let mut guest = Guest::waiting_with(&["--prewarm", "64M"]);
    assert!(guest.ask("GET", "/", "").1.contains(r#""state":"Not started""#));
    let ready = ready_vcpu_threads(&guest, 1);
    // One that cannot be loaded leaves it ready.
    let (status, why) = load(&guest, "/nowhere/at all".as_ref());
    assert!(status == 400 && why.contains("no such directory"), "{why}");
    assert_eq!(vcpu_threads(&guest), ready);
    assert_eq!(load(&guest, snapshot.directory()), (204, String::new()));
    goes_on_from(&before, &mut guest);
    assert_eq!(vcpu_threads(&guest), ready, "and no other was made");
}

#[test]
fn what_does_not_fit_runs_in_another() {
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
fn a_boot_does_without_it() {
    needs!(kvm);
    let mut guest = Guest::waiting_with(&["--prewarm", "64M"]);
    let kernel = volt_tests::small_guest();
    let config = format!(r#"{{"boot":{{"kernel":{kernel:?},"cmdline":"count"}},"memory_mib":64}}"#);
    assert_eq!(guest.ask("PUT", "/v1/boot", &config), (204, String::new()));
    guest.wait_for("count 3");
    guest.pause();
    consecutive(&guest.settled_output(), "count");
    assert_eq!(vcpu_threads(&guest).len(), 1, "what is of no use is closed");
}

#[test]
fn a_shape_that_no_vm_has_is_refused() {
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
