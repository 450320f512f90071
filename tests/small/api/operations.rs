//! Snapshots and forks that are cancelled by the ids of their operations, as Ctrl-C does.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use volt_tests::{Guest, Names, limited, needs, wait_until};

use super::native::{asked, boot_large, during_a_snapshot};

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

fn cancel_the_snapshot(guest: &Guest) {
    assert_eq!(asked(guest, "DELETE", "/v1/vm/snapshots/current", &Value::Null).0, 202);
}

fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Sends SIGINT to a command, and waits until it has cancelled its operation. Calls `then`, and checks that
/// the command ends by the signal and prints nothing.
fn interrupt(mut child: Child, then: impl FnOnce()) {
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let mut messages = BufReader::new(child.stderr.take().unwrap());
    limited("the command cancels its operation", || {
        let mut line = String::new();
        while !line.starts_with("volt-vmm: cancelling") {
            line.clear();
            assert!(messages.read_line(&mut line).unwrap() > 0, "it ended without a word");
        }
    });
    then();
    let done = limited("the command ends", || child.wait_with_output().unwrap());
    let mut rest = String::new();
    messages.read_to_string(&mut rest).unwrap();
    assert_eq!((done.status.code(), &done.stdout[..]), (Some(130), &b""[..]), "{rest}");
    assert!(rest.contains("volt-vmm: interrupted: ") && rest.contains("cancelled"), "{rest}");
}

const NOTHING: [OsString; 0] = [];

/// Returns what is left beside `path` with `word` in its name.
fn left_of(word: &str, path: &Path) -> Vec<OsString> {
    let beside = fs::read_dir(path.parent().unwrap()).unwrap().flatten();
    beside.map(|entry| entry.file_name()).filter(|name| name.to_string_lossy().contains(word)).collect()
}

#[test]
fn fork_that_waits_for_a_snapshot_is_cancelled_by_its_own_id() {
    needs!(kvm);
    let mut guest = Guest::waiting();
    boot_large(&mut guest);
    let child = guest.scratch().fresh("child");
    let body = json!({"children": [{"api_socket": child}], "operation": "mine"});
    let (status, answer) = during_a_snapshot(&guest, || {
        thread::scope(|scope| {
            let fork = scope.spawn(|| asked(&guest, "POST", "/v1/vm/forks", &body));
            wait_for_operation(&guest, 2, "fork");
            let waiting = json!({"id": "mine", "kind": "fork", "done_bytes": 0, "total_bytes": 0});
            assert_eq!(operations(&guest)[1], waiting);
            let (status, again) = asked(&guest, "POST", "/v1/vm/forks", &body);
            assert!(
                status == 400 && again["fault_message"].as_str().unwrap().contains("the id mine"),
                "{again}"
            );
            assert_eq!(asked(&guest, "DELETE", "/v1/vm/operations/mine", &Value::Null).0, 202);
            assert!(operations(&guest)[0]["done_bytes"].as_u64() > Some(0), "the snapshot goes on");
            cancel_the_snapshot(&guest);
            let (status, answer) = fork.join().unwrap();
            assert!(
                status == 400 && answer["fault_message"].as_str().unwrap().contains("cancelled"),
                "{answer}"
            );
        });
    });
    assert!(status == 400 && answer["fault_message"].as_str().unwrap().contains("cancelled"), "{answer}");
    assert!(!child.exists() && operations(&guest).is_empty());
    guest.next_number("count");
}

#[test]
fn signal_to_the_command_cancels_its_snapshot() {
    needs!(kvm);
    let mut guest = Guest::waiting();
    boot_large(&mut guest);
    let (names, path) = (Names::new(), guest.scratch().fresh("slow"));
    let mut command = names.command(["snapshot", "create", "--compress", "zstd:22"]);
    let child = start(command.arg(guest.socket()).arg(&path));
    wait_until("a snapshot", || {
        operations(&guest).iter().any(|operation| operation["done_bytes"].as_u64() > Some(0))
    });
    interrupt(child, || {});
    assert_eq!(left_of("slow", &path), NOTHING);
    assert!(operations(&guest).is_empty());
    guest.next_number("count");
}

#[test]
fn signal_cancels_a_conversion() {
    needs!(kvm);
    let mut guest = Guest::waiting();
    boot_large(&mut guest);
    let from = guest.scratch().fresh("whole");
    guest.try_snapshot(&from).succeeded();
    let (names, to) = (Names::new(), from.with_file_name("packed"));
    let mut command = names.command(["snapshot", "convert", "--compress", "zstd:22"]);
    let child = start(command.arg(&from).arg(&to));
    wait_until("a draft", || !left_of("packed", &to).is_empty());
    interrupt(child, || {});
    assert_eq!(left_of("packed", &to), NOTHING);
    assert!(names.run(&format!("snapshot verify {}", from.display())).status == 0, "the original is whole");
}

#[test]
fn signal_to_the_command_cancels_its_fork_and_frees_the_names() {
    needs!(kvm);
    let mut guest = Guest::waiting();
    boot_large(&mut guest);
    let names = Names::new();
    during_a_snapshot(&guest, || {
        let child = start(names.command(["fork", "--count", "2", "--name", "kid"]).arg(guest.socket()));
        wait_for_operation(&guest, 2, "fork");
        assert!(names.of("kid-2").exists());
        // The fork ends when its turn comes.
        interrupt(child, || cancel_the_snapshot(&guest));
    });
    assert_eq!(left_of("kid", &names.of("kid-1")), NOTHING);
    guest.next_number("count");
}
