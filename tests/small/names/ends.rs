//! Status and cause of a VM's end stay until it is removed.

use std::os::unix::net::UnixListener;

use rustix::process::{Pid, Signal, kill_process};
use volt_tests::names::{exists, named};
use volt_tests::{Guest, Input, Names, needs, wait_until};

use crate::snapshot::diffs::counting;
use crate::snapshot::two_files::Pair;

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
}

#[test]
fn each_ending_of_a_guest_has_its_status_and_cause() {
    needs!(kvm);
    let names = Names::new();
    for (behaviour, status, cause) in [
        ("hello", 0, "poweroff"),
        ("reboot", 3, "reboot"),
        ("panic", 7, "panicked"),
        ("triple-fault", 4, "triple_fault"),
    ] {
        let ended = names.start(named(behaviour, behaviour), Input::Null).wait_exit();
        assert_eq!(ended.status, status, "the client ends as its VM: {ended:?}");
        assert_eq!(names.run(&format!("wait {behaviour}")).status, status);
        let end = &names.run(&format!("wait {behaviour} --json"));
        let end: serde_json::Value = serde_json::from_str(&end.stdout).unwrap();
        assert_eq!((&end[0]["status"], &end[0]["cause"]), (&status.into(), &cause.into()), "{behaviour}");
    }
    assert_eq!(names.ok("logs hello"), "hello\n");
}

#[test]
fn wait_returns_at_the_end() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "echo");
    let mut waiting = names.command(["wait", "web"]).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(waiting.try_wait().unwrap().is_none());
    names.ok("kill --signal TERM web");
    assert_eq!(waiting.wait().unwrap().code(), Some(143));
    assert_eq!(names.json("inspect web --json")["end"]["message"], "signal 15 ended the VM");
}

#[test]
fn killed_vm_is_known_as_killed() {
    needs!(kvm);
    let names = Names::new();
    for name in ["by-command", "by-another"] {
        names.boot(name, "echo");
    }
    names.ok("kill by-command");
    let pid = names.pid("by-another");
    signal(pid, Signal::KILL);
    wait_until("the VM has ended", || names.state("by-another").as_deref() == Some("ended"));
    for name in ["by-command", "by-another"] {
        let end = names.json(&format!("inspect {name} --json"))["end"].clone();
        assert_eq!((&end["status"], &end["cause"]), (&137.into(), &"killed".into()), "{name}: {end}");
        assert_eq!(names.run(&format!("wait {name}")).status, 137);
        names.run(&format!("kill {name}")).refused(&["it has ended"]);
        names.run(&format!("stop {name}")).refused(&["it has ended"]);
    }
}

#[test]
fn end_by_a_signal_for_faults_has_its_status() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "echo");
    names.ok("snapshot create web warm");
    for (name, number, status) in [("segv", Signal::SEGV, 139), ("bus", Signal::BUS, 135)] {
        names.ok(&format!("restore -d --name {name} warm"));
        signal(names.pid(name), number);
        assert_eq!(names.run(&format!("wait {name}")).status, status);
        let end = names.json(&format!("inspect {name} --json"))["end"].clone();
        assert_eq!((&end["status"], &end["cause"]), (&status.into(), &"signal".into()), "{end}");
    }
}

#[test]
fn foreground_client_tells_that_its_vm_was_killed() {
    needs!(kvm);
    let names = Names::new();
    let mut client = names.start(named("web", "echo"), Input::Test);
    client.wait_for("ready");
    signal(names.pid("web"), Signal::KILL);
    assert_eq!(client.wait_exit().status, 137);
    assert_eq!(names.json("inspect web --json")["end"]["message"], "signal 9 killed the VM's process");
}

#[test]
fn signal_to_the_foreground_client_ends_its_vm() {
    needs!(kvm);
    let names = Names::new();
    let mut client = names.start(named("web", "echo"), Input::Test);
    client.wait_for("ready");
    let pid = names.pid("web");
    client.signal(Signal::TERM);
    assert_eq!(client.wait_exit().status, 143);
    assert!(!exists(pid));
    assert_eq!(names.json("inspect web --json")["end"]["cause"], "signal");
}

#[test]
fn killed_client_leaves_its_vm() {
    needs!(kvm);
    let names = Names::new();
    let mut client = names.start(named("web", "echo"), Input::Test);
    client.wait_for("ready");
    client.kill();
    assert_eq!(names.state("web").as_deref(), Some("running"));
    names.ok("rm --force web");
    assert_eq!(names.state("web"), None);
}

#[test]
fn running_vm_is_removed_by_force_alone() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "echo");
    names.run("rm web").refused(&["it runs", "rm --force"]);
    assert_eq!(names.ok("prune"), "");
    names.ok("kill web");
    names.boot("db", "echo");
    assert_eq!(names.json("prune --json"), serde_json::json!(["web"]));
    assert_eq!(names.ok("ps -aq"), "db\n");
}

/// A VM `web` whose start waits for a memory handler that never answers.
pub(super) struct Starting {
    pub(super) names: Names,
    pub(super) client: Guest,
    pid: u32,
    _snapshot: Guest,
    _handler: UnixListener,
}

impl Starting {
    pub(super) fn web() -> Self {
        let (names, guest) = (Names::new(), counting(8));
        let pair = Pair::fresh(guest.scratch());
        pair.take(&guest, "Full");
        let socket = names.scratch().path("handler");
        let silent = UnixListener::bind(&socket).unwrap();
        let words = ["restore", "--name", "web", "--handler-patience", "600", "--memory-handler"];
        let mut words: Vec<_> = words.into_iter().map(Into::into).collect();
        words.extend([socket.into(), pair.state.into()]);
        let client = names.start(words, Input::Null);
        let process = || names.json("inspect web --json")["pid"].as_u64();
        wait_until("the VM starts", || {
            names.state("web").as_deref() == Some("starting") && process().is_some()
        });
        let pid = names.pid("web");
        Self { names, client, pid, _snapshot: guest, _handler: silent }
    }

    /// Checks that neither the process nor the name is left.
    pub(super) fn is_over(&self) {
        assert!(!exists(self.pid) && !self.names.of("web").exists());
    }
}

#[test]
fn signal_during_a_start_ends_the_vm_and_frees_its_name() {
    needs!(kvm, page_faults);
    let mut web = Starting::web();
    web.client.signal(Signal::INT);
    let ended = web.client.wait_exit();
    assert_eq!(ended.status, 130, "{ended:?}");
    web.is_over();
}
