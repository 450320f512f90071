//! `volt-vmm events` follows one VM, several, or all.

use rustix::process::Signal;
use serde_json::Value;
use volt_tests::{Boot, Guest, Input, Names, needs};

fn follow(names: &Names, words: &[&str]) -> Guest {
    let words = std::iter::once("events").chain(words.iter().copied()).map(Into::into);
    names.start(words.collect(), Input::Null)
}

#[test]
fn named_vm_is_followed_to_its_end() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "echo");
    let id = names.json("inspect web --json")["id"].clone();
    let mut follower = follow(&names, &["--json", "web"]);
    follower.wait_for(r#""event":"state","state":"running"}"#);
    names.ok("pause web");
    follower.wait_for(r#""state":"paused"}"#);
    names.ok("resume web");
    follower.wait_for(r#""state":"running"}"#);
    names.ok("stop -t 0 web");
    let ended = follower.wait_exit();
    assert_eq!(ended.status, 0, "{ended:?}");
    let lines: Vec<Value> = ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in &lines {
        assert!(line["name"] == "web" && line["id"] == id, "{line}");
        assert!(line["time"].as_str().is_some_and(|time| time.starts_with("20")), "{line}");
    }
    let last = lines.last().unwrap();
    assert_eq!(
        (&last["event"], &last["status"], &last["cause"]),
        (&"ended".into(), &0.into(), &"stopped".into())
    );
}

#[test]
fn all_vms_are_followed_and_those_that_start_meanwhile() {
    needs!(kvm);
    let names = Names::new();
    names.boot("earlier", "echo");
    let mut follower = follow(&names, &[]);
    // It looks for later ones before it tells of this.
    follower.wait_for(" earlier running\n");
    names.boot("web", "echo");
    follower.wait_for(" web started from ").wait_for(" web running\n");
    names.ok("fork --name kid web");
    follower.wait_for(" kid started from fork of web\n").wait_for(" kid running\n");
    names.ok("kill kid");
    follower.wait_for(" kid ended with status 137: ");
    // One that ends at once.
    names.boot("short", "hello");
    follower.wait_for(" short started from ").wait_for(" short ended with status 0: the guest powered off\n");
    let mut second = follow(&names, &["--format", "json"]);
    second.wait_for(r#""name":"web""#);
    follower.signal(Signal::INT);
    assert_eq!(follower.wait_exit().status, -Signal::INT.as_raw());
    assert!(second.is_running() && !second.output().contains("started"), "{}", second.output());
}

#[test]
fn names_of_a_refused_fork_have_no_events() {
    needs!(kvm);
    let names = Names::new();
    names.boot("web", "echo");
    names.boot("kid-2", "echo");
    let mut follower = follow(&names, &[]);
    follower.wait_for(" running\n").wait_for(" running\n");
    // The first name is claimed, and free again.
    names.run("fork --name kid --count 2 web").refused(&["VM kid-2: a VM of this name runs"]);
    names.run("fork --name other --disk id=none,path=/d web").refused(&["none"]);
    // Events of later VMs follow those of earlier ones.
    names.boot("last", "hello");
    follower.wait_for(" last ended with status 0: the guest powered off\n");
    let told = follower.output();
    assert!(!told.contains(" kid-1 ") && !told.contains(" other "), "{told}");
}

#[test]
fn several_named_vms_are_followed_until_the_last_has_ended() {
    needs!(kvm);
    let names = Names::new();
    for name in ["a", "b", "c"] {
        names.boot(name, "echo");
    }
    let mut follower = follow(&names, &["a", "b"]);
    follower.wait_for(" running\n").wait_for(" running\n");
    names.ok("kill --signal TERM a");
    follower.wait_for(" a ended with status 143: signal 15 ended the VM\n");
    assert!(follower.is_running());
    names.ok("kill b");
    let ended = follower.wait_exit();
    assert!(ended.status == 0 && ended.stdout.contains(" b ended with status 137"), "{ended:?}");
    assert!(!ended.stdout.contains(" c "), "{ended:?}");
    names.run("events a").refused(&["VM a: it has ended"]);
    names.run("events nobody").refused(&["VM nobody: no VM has this name"]);
}

#[test]
fn vm_without_a_name_is_followed_by_its_socket() {
    needs!(kvm);
    let names = Names::new();
    let mut guest = Boot::small("echo").start();
    guest.wait_for("ready");
    let socket = guest.socket().to_str().unwrap().to_owned();
    let mut follower = follow(&names, &[&socket]);
    follower.wait_for(&format!(" {socket} running\n"));
    assert_eq!(guest.ask("PUT", "/v1/stop", "").0, 204);
    let ended = follower.wait_exit();
    assert!(ended.status == 0 && ended.stdout.contains("ended: a signal or a request"), "{ended:?}");
    // The event comes before the process has ended and closed its socket.
    guest.wait_exit();
    names.run(&format!("events {socket}")).refused(&["cannot connect"]);
}
