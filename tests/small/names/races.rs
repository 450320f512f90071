//! Commands of several processes at once: no name is taken twice, and none is lost.

use std::process::Child;

use volt_tests::names::{named, small};
use volt_tests::patience::in_lab;
use volt_tests::{Names, needs};

fn spawn(names: &Names, words: Vec<std::ffi::OsString>) -> Child {
    use std::process::Stdio;
    let mut command = names.command(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn one_of_many_starts_of_a_name_succeeds() {
    needs!(kvm);
    let names = Names::new();
    let start = || {
        let mut words = named("web", "echo");
        words.push("--detach".into());
        spawn(&names, words)
    };
    let outcomes: Vec<_> =
        [(); 12].map(|()| start()).into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    assert_eq!(outcomes.iter().filter(|outcome| outcome.status.success()).count(), 1);
    for refused in outcomes.iter().filter(|outcome| !outcome.status.success()) {
        let text = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(text, "volt-vmm: VM web: a VM of this name runs; choose another name\n");
    }
    assert_eq!(names.ok("ps -q"), "web\n");
}

#[test]
fn starts_and_removals_of_one_name_leave_it_whole() {
    needs!(kvm);
    let names = Names::new();
    for _ in 0..5 {
        names.boot("web", "hello");
        assert_eq!(names.run("wait web").status, 0);
        let removals: Vec<_> =
            [(); 4].map(|()| spawn(&names, ["rm", "web"].map(Into::into).to_vec())).into_iter().collect();
        let mut words = named("web", "hello");
        words.push("--detach".into());
        let start = spawn(&names, words).wait_with_output().unwrap();
        for removal in removals {
            let removed = removal.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&removed.stderr).into_owned();
            let is_known = removed.status.success()
                || ["no VM has this name", "it runs"].iter().any(|words| text.contains(words));
            assert!(is_known, "{text}");
        }
        if start.status.success() {
            // A removal may have been quicker.
            let _ = names.run("wait web");
        }
        let _ = names.run("rm web");
        assert_eq!(names.ok("ps -aq"), "");
    }
}

/// Their processes take 600 MiB in all.
#[test]
fn two_hundred_vms_are_all_listed() {
    needs!(kvm);
    let names = Names::new();
    let mut expected = Vec::new();
    for batch in 0..10 {
        let batch: Vec<_> = (0..20).map(|number| format!("vm-{:03}", batch * 20 + number)).collect();
        let starts: Vec<_> = batch
            .iter()
            .map(|name| {
                let mut words = small("echo");
                words.extend(["--detach", "--name", name].map(Into::into));
                spawn(&names, words)
            })
            .collect();
        for start in starts {
            let started = start.wait_with_output().unwrap();
            assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        }
        expected.extend(batch);
    }
    let found = names.json("ps --json");
    let found: Vec<_> = found
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            // An emulated processor runs 200 guests, and not each answers within the time of `ps`.
            assert!(row["state"] == "running" || in_lab() && row["state"] == "unresponsive", "{row}");
            row["name"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(found, expected);
    let all: Vec<_> = expected.iter().map(String::as_str).collect();
    names.ok(&format!("kill {}", all.join(" ")));
    assert_eq!(names.ok("prune").lines().count(), 200);
    assert_eq!(names.ok("ps -aq"), "");
}
