//! Snapshots, forks and conversions that are cancelled: by the ids of their operations, and by signals to
//! their commands.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};
use volt_tests::{Guest, Input, Names, needs, wait_until};

use super::native::{asked, booted_large, during_a_snapshot};

const NOTHING: [OsString; 0] = [];

fn operations(guest: &Guest) -> Vec<Value> {
    let (status, answer) = asked(guest, "GET", "/v1/vm/operations", &Value::Null);
    assert_eq!(status, 200, "{answer}");
    answer["operations"].as_array().unwrap().clone()
}

/// Waits until the guest has so many operations, and the last is of this kind.
fn wait_for_operation(guest: &Guest, count: usize, kind: &str) {
    wait_until(&format!("{count} operations, the last a {kind}"), || {
        let all = operations(guest);
        all.len() == count && all[count - 1]["kind"] == kind
    });
}

/// Cancels the snapshot that [`during_a_snapshot`] takes, which has gone on until now.
fn cancel_the_snapshot(guest: &Guest) {
    let done = || operations(guest).first().expect("the snapshot goes on")["done_bytes"].as_u64();
    let before = done();
    wait_until("the snapshot goes on", || done() > before);
    assert_eq!(asked(guest, "DELETE", "/v1/vm/snapshots/current", &Value::Null).0, 202);
}

#[track_caller]
fn was_cancelled((status, answer): &(u16, Value)) {
    assert!(*status == 400 && answer["fault_message"].as_str().unwrap().contains("cancelled"), "{answer}");
}

/// Starts a command.
fn start(names: &Names, words: &[&str], paths: &[&Path]) -> Guest {
    let words = words.iter().map(OsString::from).chain(paths.iter().map(|path| path.into()));
    names.start(words.collect(), Input::Null)
}

/// Sends a signal to a command, and checks that the command cancels its act and ends by the signal.
fn interrupt(mut command: Guest, signal: Signal) {
    command.signal(signal);
    let ended = command.wait_exit();
    assert_eq!((ended.status, ended.stdout.as_str()), (128 + signal.as_raw(), ""), "{ended:?}");
    let is_told = |words: &str| ended.stderr.contains(&format!("volt-vmm: {words}"));
    assert!(is_told("cancelling; ") && is_told("interrupted: "), "{ended:?}");
    assert!(ended.stderr.contains("cancelled"), "{ended:?}");
}

/// Returns what is left beside `path` with `word` in its name.
fn left_of(word: &str, path: &Path) -> Vec<OsString> {
    let beside = fs::read_dir(path.parent().unwrap()).unwrap().flatten();
    beside.map(|entry| entry.file_name()).filter(|name| name.to_string_lossy().contains(word)).collect()
}

#[test]
fn fork_that_waits_for_a_snapshot_is_cancelled_by_its_own_id() {
    needs!(kvm);
    let mut guest = booted_large();
    let child = guest.scratch().fresh("child");
    let body = json!({"children": [{"api_socket": child}], "operation": "mine"});
    let answer = during_a_snapshot(&guest, || {
        thread::scope(|scope| {
            let fork = scope.spawn(|| asked(&guest, "POST", "/v1/vm/forks", &body));
            wait_for_operation(&guest, 2, "fork");
            let waiting = json!({"id": "mine", "kind": "fork", "done_bytes": 0, "total_bytes": 0});
            assert_eq!(operations(&guest)[1], waiting);
            let (status, again) = asked(&guest, "POST", "/v1/vm/forks", &body);
            let text = again["fault_message"].as_str().unwrap();
            assert!(status == 400 && text.contains("another one has the id mine"), "{text}");
            assert_eq!(asked(&guest, "DELETE", "/v1/vm/operations/mine", &Value::Null).0, 202);
            was_cancelled(&fork.join().unwrap());
        });
        cancel_the_snapshot(&guest);
    });
    was_cancelled(&answer);
    assert!(!child.exists() && operations(&guest).is_empty());
    guest.next_number("count");
}

#[test]
fn cancelled_fork_leaves_none_of_its_children() {
    needs!(kvm);
    let mut guest = booted_large();
    let file = |number, kind| guest.scratch().path(&format!("kid-{number}.{kind}"));
    let child = |number| json!({"api_socket": file(number, "sock"), "serial": file(number, "out")});
    let body = json!({"children": (0..200).map(child).collect::<Vec<_>>(), "operation": "many"});
    thread::scope(|scope| {
        let fork = scope.spawn(|| asked(&guest, "POST", "/v1/vm/forks", &body));
        wait_until("the first child starts", || file(0, "out").exists() || fork.is_finished());
        assert_eq!(asked(&guest, "DELETE", "/v1/vm/operations/many", &Value::Null).0, 202);
        was_cancelled(&fork.join().unwrap());
    });
    assert_eq!(left_of("kid-", &file(0, "out")), NOTHING);
    assert!(operations(&guest).is_empty());
    guest.next_number("count");
}

#[test]
fn signal_to_the_command_cancels_its_snapshot() {
    needs!(kvm);
    let mut guest = booted_large();
    let (names, path) = (Names::new(), guest.scratch().fresh("slow"));
    let words = ["snapshot", "create", "--compress", "zstd:22"];
    let command = start(&names, &words, &[guest.socket(), &path]);
    wait_until("a snapshot", || {
        operations(&guest).iter().any(|operation| operation["done_bytes"].as_u64() > Some(0))
    });
    interrupt(command, Signal::INT);
    assert_eq!(left_of("slow", &path), NOTHING);
    assert!(operations(&guest).is_empty());
    guest.next_number("count");
}

#[test]
fn signal_to_the_command_cancels_its_fork_and_frees_the_names() {
    needs!(kvm);
    let mut guest = booted_large();
    let names = Names::new();
    during_a_snapshot(&guest, || {
        let command = start(&names, &["fork", "--count", "2", "--name", "kid"], &[guest.socket()]);
        wait_for_operation(&guest, 2, "fork");
        assert!(names.of("kid-2").exists());
        interrupt(command, Signal::TERM);
        assert_eq!(left_of("kid", &names.of("kid-1")), NOTHING);
        cancel_the_snapshot(&guest);
    });
    guest.next_number("count");
}

#[test]
fn signal_cancels_a_conversion() {
    needs!(kvm);
    let guest = booted_large();
    let from = guest.scratch().fresh("whole");
    guest.try_snapshot(&from).succeeded();
    let (names, to) = (Names::new(), from.with_file_name("packed"));
    let command = start(&names, &["snapshot", "convert", "--compress", "zstd:22"], &[&from, &to]);
    wait_until("a draft", || !left_of("packed", &to).is_empty());
    interrupt(command, Signal::INT);
    assert_eq!(left_of("packed", &to), NOTHING);
    names.run(&format!("snapshot verify {}", from.display())).succeeded();
}
