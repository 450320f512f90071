//! The process of a VM confines itself before the guest runs.

use std::fs;

use serde_json::{Value, json};
use volt_tests::injected::children_of;
use volt_tests::{Boot, Child, Guest, Outcome, SECRET, Scratch, needs, wait_until};

use crate::memory::{Shared, goes_on};

/// Returns a field of `/proc/PID/task/*/status` by thread (proc(5)).
fn of_threads(pid: u32, field: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap_or_default();
        let value =
            |field: &str| status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(":\t"));
        if let (Some(name), Some(value)) = (value("Name"), value(field)) {
            found.push((name.to_owned(), value.to_owned()));
        }
    }
    found
}

/// Returns the threads of a guest's process, or of a pager, that are filtered, and those that are not.
fn filtered(pid: u32) -> (Vec<String>, Vec<String>) {
    const FILTERS: &str = "Seccomp_filters"; // Linux 5.9
    let threads = of_threads(pid, FILTERS);
    // All have those of the harness. The starter has no others.
    let children = children_of(pid);
    let starter = children.iter().filter(|(name, _)| name == "volt-starter");
    let unfiltered = starter.flat_map(|(_, pid)| of_threads(pid.cast_unsigned(), FILTERS));
    let fewest = threads.iter().cloned().chain(unfiltered).map(|(_, filters)| filters).min().unwrap();
    let (filtered, others): (Vec<_>, Vec<_>) =
        threads.into_iter().partition(|(_, filters)| *filters != fewest);
    let names = |threads: Vec<(String, String)>| threads.into_iter().map(|(name, _)| name).collect();
    (names(filtered), names(others))
}

/// Returns the soft and the hard limit of core files of a process (`/proc/PID/limits`).
fn core_limit(pid: u32) -> Vec<String> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).unwrap();
    line.split_whitespace().take(2).map(str::to_owned).collect()
}

fn running(more: &[&str]) -> Guest {
    let mut guest = Boot::small("count").vcpus(2).device(["--rng"]).device(more.iter().copied()).start();
    guest.next_number("count");
    guest
}

/// A filter for each kind of thread that allows all calls but `forbidden` to vCPUs.
fn filters_without(forbidden: &str) -> Value {
    let all = json!({"mismatch_action": "allow", "match_action": "trap", "filter": [{"syscall": "reboot"}]});
    let vcpu =
        json!({"mismatch_action": "allow", "match_action": "trap", "filter": [{"syscall": forbidden}]});
    let mut filters = json!({"vcpu": vcpu});
    for kind in ["device", "block", "starter", "pager", "opener", "resolver", "worker"] {
        filters[kind] = all.clone();
    }
    filters
}

#[test]
fn all_threads_are_filtered_and_the_process_leaves_no_core() {
    needs!(kvm);
    let guest = running(&[]);
    let snapshot = guest.snapshot();
    let mut clone = snapshot.restore();
    clone.next_number("count");
    for (guest, first_vcpu) in [(&guest, "volt-vcpu0"), (&clone, "volt-vmm")] {
        // The first thread of a booted VM's process starts the VM, then confines itself and waits.
        wait_until("all threads are filtered, the last to start too", || {
            let (filtered, others) = filtered(guest.pid());
            others.is_empty() && filtered.iter().any(|name| name == "volt-api")
        });
        let (filtered, _) = filtered(guest.pid());
        for thread in [first_vcpu, "volt-vcpu1", "volt-devices", "volt-api"] {
            assert!(filtered.iter().any(|name| name == thread), "{thread}: {filtered:?}");
        }
        assert!(of_threads(guest.pid(), "NoNewPrivs").iter().all(|(_, set)| set == "1"));
        assert_eq!(core_limit(guest.pid()), ["0", "0"]);
    }
}

#[test]
fn all_threads_of_a_shared_pager_are_filtered() {
    needs!(kvm);
    let shared = Shared::new();
    let mut guest = shared.restore(&[]);
    goes_on(&mut guest);
    let (filtered, others) = filtered(shared.pager().as_raw_nonzero().get().cast_unsigned());
    assert_eq!(others, [""; 0]);
    assert!(filtered.iter().any(|name| name == "volt-pager"), "{filtered:?}");
}

#[test]
fn options_leave_out_the_filters_or_the_whole_confinement() {
    needs!(kvm);
    let guest = running(&["--no-seccomp"]);
    assert_eq!(filtered(guest.pid()).0, [""; 0]);
    assert_eq!(core_limit(guest.pid()), ["0", "0"]);
    let guest = running(&["--confine", "off"]);
    assert_eq!(filtered(guest.pid()).0, [""; 0]);
    assert_eq!(core_limit(guest.pid()), core_limit(std::process::id()));
    let mut clone = guest.snapshot().restore_as(&["--no-seccomp"]);
    clone.next_number("count");
    assert_eq!(filtered(clone.pid()).0, [""; 0]);
}

#[test]
fn secrets_of_the_environment_are_in_no_process_of_a_vm() {
    needs!(kvm);
    let environment = |pid: u32| {
        let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap();
        String::from_utf8(bytes).unwrap().replace('\0', "\n")
    };
    let unconfined = running(&["--confine", "off"]);
    assert!(environment(unconfined.pid()).contains(&format!("TOKEN={SECRET}")), "the harness sets it");
    let guest = running(&[]);
    let mut clone = guest.snapshot().restore();
    clone.next_number("count");
    let children = Child::fork(guest.socket(), guest.scratch().directory(), &[("child", json!({}))], false);
    for vm in [guest.pid(), clone.pid(), children[0].pid()] {
        let beside = children_of(vm).into_iter().map(|(_, pid)| pid.cast_unsigned());
        for pid in beside.chain([vm]) {
            let environment = environment(pid);
            assert!(!environment.contains(SECRET), "{environment}");
            assert!(environment.contains("PATH="), "{environment}");
        }
    }
}

#[test]
fn doctor_tells_the_confinement_in_force() {
    needs!(kvm);
    let security = |guest: &Guest| {
        let outcome = Outcome::of(["doctor", "--security", guest.socket().to_str().unwrap(), "--json"]);
        (outcome.status, serde_json::from_str::<Value>(&outcome.stdout).unwrap())
    };
    let guest = running(&[]);
    wait_until("all threads are filtered", || filtered(guest.pid()).1.is_empty());
    let (status, report) = security(&guest);
    // A kernel may have no Landlock.
    let has_landlock = report["kinds"].as_array().unwrap().iter().all(|kind| kind["landlock"] == true);
    assert_eq!((status, &report["ok"]), (i32::from(!has_landlock), &json!(has_landlock)), "{report}");
    let names = |list: &str, field: &str| -> Vec<String> {
        let entries = report[list].as_array().unwrap().iter();
        entries.map(|entry| entry[field].as_str().unwrap().to_owned()).collect()
    };
    for thread in ["volt-vcpu0", "volt-devices", "volt-api", "volt-opener", "volt-starter"] {
        assert!(names("threads", "name").iter().any(|name| name == thread), "{thread}: {report}");
    }
    for kind in ["vcpu", "starter", "worker"] {
        assert!(names("kinds", "kind").iter().any(|name| name == kind), "{kind}: {report}");
    }
    for weaker in [&["--confine", "off"][..], &["--no-seccomp"]] {
        let (status, report) = security(&running(weaker));
        assert_eq!((status, &report["ok"]), (1, &json!(false)), "{weaker:?}: {report}");
    }
    Outcome::of(["doctor", "--security", "/no/such/socket"]).failed_with(&["/no/such/socket"]);
}

#[test]
fn forbidden_call_ends_the_process_and_is_named() {
    needs!(kvm);
    let scratch = Scratch::new();
    let file = scratch.path("filters.json");
    fs::write(&file, filters_without("ioctl").to_string()).unwrap();
    let file = file.to_str().unwrap();
    let outcome = Boot::small("count").device(["--seccomp-filter", file]).outcome();
    outcome.failed_with(&["thread volt-vcpu0 ", "its seccomp filter forbids: ioctl(0x", ", 0xae80, "]);
    assert_eq!(outcome.status, 6, "{outcome:?}");
}

#[test]
fn file_of_filters_that_lacks_a_kind_is_refused() {
    needs!(kvm);
    let scratch = Scratch::new();
    let file = scratch.path("filters.json");
    let mut filters = filters_without("reboot");
    filters.as_object_mut().unwrap().remove("block");
    fs::write(&file, filters.to_string()).unwrap();
    let given = ["--seccomp-filter", file.to_str().unwrap()];
    Boot::small("count").device(given).outcome().refused(&["no filter for threads of kind block"]);
    let given = ["--seccomp-filter", "/no/such/file"];
    Boot::small("count").device(given).outcome().refused(&["/no/such/file", "read seccomp filters"]);
}
