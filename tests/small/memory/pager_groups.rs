//! Groups of VMs over REST: each group has a shared pager of its own.

use serde_json::json;
use volt_tests::scratch::list;
use volt_tests::{Guest, Scratch, needs, numbers, wait_until};

use crate::memory::pager::base_of;

#[test]
fn pager_serves_only_the_vms_of_its_group() {
    needs!(kvm, page_faults);
    let mut guest = Guest::boot("count mib=1");
    guest.wait_for("count 10");
    let snapshot = guest.snapshot_as(&["--compress", "lz4"]);
    drop(guest);
    let scratch = Scratch::new();
    let directory = scratch.path("pagers");
    let load = |group: &str| {
        let pager = json!({"directory": directory, "group": group});
        let load = json!({"snapshot_path": snapshot.directory(), "resume_vm": true, "pager": pager});
        let waiting = Guest::waiting();
        let answer = waiting.ask("PUT", "/snapshot/load", &load.to_string());
        (waiting, answer)
    };
    let guests = ["blue", "blue", "red"].map(|group| {
        let (guest, answer) = load(group);
        assert_eq!(answer, (204, String::new()));
        wait_until("the guest counts", || numbers(&guest.output(), "count").len() > 4);
        assert!(!guest.output().contains("WRONG"), "{}", guest.output());
        guest
    });
    let bases = guests.each_ref().map(base_of);
    assert!(bases[0] == bases[1] && bases[0] != bases[2], "{bases:?}");
    let mut groups: Vec<_> = list(&directory).into_iter().filter(|name| name.starts_with("group-")).collect();
    groups.sort();
    assert_eq!(groups, ["group-blue", "group-red"]);
    let (_guest, (status, answer)) = load("../red");
    assert!(status == 400 && answer.contains("pager_group") && answer.contains("letters"), "{answer}");
}
