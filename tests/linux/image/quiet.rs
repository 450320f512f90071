//! Quiet snapshots and forks: the workload is frozen, and each clone wakes as a VM of its own.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;
use volt_tests::{needs, rest, wait_until};

use super::runs::{IMAGE, Images};
use super::warm::kernel_can_pre_fault;

/// Draws random numbers of the kernel again and again, ends with status 4 when asked to, and has a machine id
/// and hooks.
const SCRIPT: &str = "
    trap 'exit 4' TERM
    echo 00000000000000000000000000000000 >/etc/machine-id
    for hook in pre-snapshot post-restore; do
        mkdir -p /etc/volt/$hook.d
        echo \"#!/bin/sh
            echo $hook >>/hooks\" >/etc/volt/$hook.d/note
        chmod 755 /etc/volt/$hook.d/note
    done
    echo ready
    while :; do
        read number </proc/sys/kernel/random/uuid
        echo $number >>/numbers
        sleep 0.05
    done";

/// Questions for the time of a VM.
const QUESTIONS: usize = 20;
/// In nanoseconds: how far a clock may be from the host's. The clock is set by an answer of the agent, which
/// takes 0.1 s on a busy emulated processor. A clock that is not set is behind by [`MISSED`] or more.
const NEAR: i128 = 1_000_000_000;
/// The time that passes between a snapshot and its clones.
const MISSED: Duration = Duration::from_secs(3);

/// A VM `web` that draws numbers.
fn drawing() -> Images {
    let images = Images::new();
    let options = ["run", "--detach", "--name", "web"];
    images.run(&[&options[..], &[IMAGE, "sh", "-c", SCRIPT]].concat()).succeeded();
    wait_until("it draws", || images.run(&["exec", "web", "grep", "-q", "-", "/numbers"]).status == 0);
    images
}

/// Runs a script in a VM. Returns its output.
fn exec(images: &Images, vm: &str, script: &str) -> String {
    images.run(&["exec", vm, "sh", "-c", script]).succeeded().stdout.clone()
}

/// The numbers that a VM has drawn, in their order. The last line may not be whole.
fn numbers(images: &Images, vm: &str) -> Vec<String> {
    let text = exec(images, vm, "cat /numbers");
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(str::to_owned).collect()
}

/// Checks that clones share what was drawn before, and nothing of what was drawn since.
fn draw_apart(images: &Images, vms: &[&str]) {
    let drawn: Vec<_> = vms
        .iter()
        .map(|vm| {
            let before = numbers(images, vm).len();
            wait_until("it goes on", || numbers(images, vm).len() > before + 5);
            numbers(images, vm)
        })
        .collect();
    let shared = (0..).take_while(|&at| drawn.iter().all(|own| own.get(at) == drawn[0].get(at))).count();
    assert!(shared > 0, "they have one past");
    let since: Vec<_> = drawn.iter().flat_map(|own| &own[shared..]).collect();
    assert!(drawn.iter().all(|own| own.len() > shared + 5));
    assert_eq!(since.iter().collect::<HashSet<_>>().len(), since.len(), "no number came twice");
}

/// Asks a VM for its time again and again. Each answer bounds the distance of its clock from the host's: the
/// guest read it between the question and the answer.
fn clock_is_that_of_the_host(images: &Images, vm: &str) {
    let mut command = images.command(&["exec", "-i", vm, "draws", "clock"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start exec");
    let (mut questions, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut answers = BufReader::new(answers).lines();
    let now = || i128::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap();
    let (mut least, mut most) = (i128::MIN, i128::MAX);
    for _ in 0..QUESTIONS {
        let asked = now();
        questions.write_all(b"\n").unwrap();
        let told: i128 = answers.next().expect("an answer").unwrap().parse().unwrap();
        (least, most) = (least.max(told - now()), most.min(told - asked));
    }
    drop(questions);
    assert!(child.wait().unwrap().success());
    assert!(least <= NEAR && most >= -NEAR, "{least} to {most} ns after the host's");
}

/// Checks the names of clones, and that each has run its hooks once.
fn are_of_their_own(images: &Images, clones: &[&str]) {
    let mut ids = HashSet::new();
    for clone in clones {
        let names = exec(images, clone, "hostname; cat /etc/hostname; grep 127.0.1.1 /etc/hosts");
        assert_eq!(names, format!("{clone}\n{clone}\n127.0.1.1\t{clone}\n"));
        assert_eq!(exec(images, clone, "cat /hooks"), "pre-snapshot\npost-restore\n");
        ids.insert(exec(images, clone, "cat /etc/machine-id"));
    }
    assert_eq!(exec(images, "web", "hostname; cat /hooks"), "web\npre-snapshot\n");
    ids.insert(exec(images, "web", "cat /etc/machine-id"));
    assert_eq!(ids.len(), clones.len() + 1, "{ids:?}");
}

#[test]
fn clones_of_a_quiet_snapshot_wake_as_vms_of_their_own() {
    needs!(kvm, linux, agent);
    let images = drawing();
    // A command that starts meanwhile waits for the thaw, and holds nothing up.
    let is_taken = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_taken.load(Ordering::SeqCst) {
                exec(&images, "web", "true");
            }
        });
        images.names.ok("snapshot create --quiesce web warm");
        is_taken.store(true, Ordering::SeqCst);
    });
    assert!(!images.names.ok("snapshot inspect --json warm").contains("FROM=image"), "variables stay hidden");
    std::thread::sleep(MISSED);
    let clones = ["one", "two"];
    for clone in clones {
        images.names.ok(&format!("restore --detach --require-agent --name {clone} warm"));
    }
    clock_is_that_of_the_host(&images, "one");
    draw_apart(&images, &["web", "one", "two"]);
    are_of_their_own(&images, &clones);
    images.names.ok("stop one");
    assert_eq!(images.names.json("inspect one --json")["end"]["status"], 4);
}

#[test]
fn children_of_a_quiet_fork_wake_as_vms_of_their_own() {
    needs!(kvm, linux, agent);
    let images = drawing();
    images.names.ok("fork --quiesce --require-agent --count 2 --name child web");
    let clones = ["child-1", "child-2"];
    draw_apart(&images, &["web", "child-1", "child-2"]);
    are_of_their_own(&images, &clones);
    images.names.ok("stop child-1");
    assert_eq!(images.names.json("inspect child-1 --json")["end"]["status"], 4);
}

#[test]
fn children_of_later_forks_have_the_pages_that_the_first_one_touched() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    let log = images.names.scratch().path("log").display().to_string();
    let options = ["run", "--detach", "--name", "web", "--log", &log, "--log-level", "debug"];
    images.run(&[&options[..], &[IMAGE, "sh", "-c", SCRIPT]].concat()).succeeded();
    wait_until("it draws", || images.run(&["exec", "web", "grep", "-q", "-", "/numbers"]).status == 0);
    let fork = |name| images.names.ok(&format!("fork --quiesce --require-agent --name {name} web"));
    fork("first");
    assert!(images.mapped_ahead("first").is_null(), "nothing is known yet");
    // The agent has been called, but not by another program.
    fork("second");
    assert!(images.mapped_ahead("second").is_null(), "nothing is known yet");
    exec(&images, "first", "grep -c - /numbers");
    // The set is kept once the connection has ended, which nothing tells.
    wait_until("a child has pages from the start", || {
        fork("later");
        let is_ahead = !images.mapped_ahead("later").is_null();
        if !is_ahead {
            images.names.ok("rm --force later");
        }
        is_ahead
    });
    let ahead = images.mapped_ahead("later");
    assert!(ahead["read"].as_u64() > Some(100) && ahead["read"] == ahead["pages"], "{ahead}");
    let text = fs::read_to_string(&log).unwrap();
    let said = |words: &str| text.lines().any(|line| line.contains("[later]") && line.contains(words));
    assert!(said("pages are mapped before the guest runs"), "{text}");
    assert!(!said("is not mapped for the guest ahead") || !kernel_can_pre_fault(), "{text}");
    // They are of two instants.
    draw_apart(&images, &["web", "later"]);
    draw_apart(&images, &["first", "later"]);
}

/// Ends once a hook has let it. The hook of `child-1` does so soon, and that of `child-2` is slow, and then
/// does not.
const ENDS_IN_ONE_CHILD: &str = "
    mkdir -p /etc/volt/post-restore.d
    echo '#!/bin/sh
        case $(hostname) in
            child-1) (sleep 2; : >/end) & ;;
            child-2) sleep 6 ;;
        esac' >/etc/volt/post-restore.d/hook
    chmod 755 /etc/volt/post-restore.d/hook
    echo ready
    until [ -e /end ]; do sleep 0.1; done
    exit 5";

#[test]
fn end_of_a_main_process_is_recorded_though_a_sibling_still_wakes() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    let options = ["run", "--detach", "--name", "web", "--upper", "memory"];
    images.run(&[&options[..], &[IMAGE, "sh", "-c", ENDS_IN_ONE_CHILD]].concat()).succeeded();
    images.names.wait_for("web", "ready\n");
    // Nothing is frozen, so the main process of the first child ends while the second one's hook runs.
    images.names.ok("fork --require-agent --name child --count 2 web");
    wait_until("child-1 has ended", || images.names.state("child-1").as_deref() == Some("ended"));
    let end = &images.names.json("inspect child-1 --json")["end"];
    assert_eq!((&end["cause"], &end["status"]), (&"exited".into(), &5.into()), "{end}");
    assert_eq!(images.names.state("child-2").as_deref(), Some("running"));
}

#[test]
fn failed_hook_refuses_a_snapshot_and_a_clone() {
    needs!(kvm, linux, agent);
    let images = drawing();
    exec(
        &images,
        "web",
        "mv /etc/volt/pre-snapshot.d/note /note; ln -s /bin/false /etc/volt/pre-snapshot.d/f",
    );
    let refused = images.names.run("snapshot create --quiesce web warm");
    refused.refused(&["quiesce: hook /etc/volt/pre-snapshot.d/f"]);
    // A snapshot that the VM cannot have is refused before its guest is asked.
    let body = json!({"snapshot_path": "/s", "mem_file_path": "/m", "quiesce": true}).to_string();
    let socket = images.names.of("web").join("api.sock");
    let (status, answer) = rest::ask(&socket, "PUT", "/snapshot/create", &body);
    assert!(status == 400 && answer.contains("has a layer"), "{status} {answer}");
    let before = numbers(&images, "web").len();
    wait_until("it goes on", || numbers(&images, "web").len() > before);
    exec(&images, "web", "rm /etc/volt/pre-snapshot.d/f; ln -s /none /etc/volt/post-restore.d/gone");
    exec(&images, "web", "echo 'exit 3' >/fails; chmod 755 /fails; ln -s /fails /etc/volt/post-restore.d/f");
    images.names.ok("snapshot create --quiesce web warm");
    let refused = images.names.run("restore --detach --require-agent --name one warm");
    refused.refused(&["the guest did not wake whole: hook /etc/volt/post-restore.d/f"]);
    assert!(!images.names.ok("ps --all --quiet").contains("one"));
    // Without the option it goes on all the same.
    images.names.ok("restore --detach --name two warm");
    draw_apart(&images, &["web", "two"]);
    assert!(images.names.ok("logs --messages two").contains("did not wake whole"));
}
