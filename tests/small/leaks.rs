//! Forks in quantity: what each took is given back when it goes.

use std::fs;
use std::process::Command;

use volt_tests::{Outcome, Recorder, needs, wait_until};
use volt_vmm::{IrqchipKind, RestoreOptions, Vm};

/// Set in the process of the test's own: other tests of this one have descriptors and threads too.
const ALONE: &str = "VOLT_ALONE";

/// What a process holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    descriptors: usize,
    threads: usize,
    mappings: usize,
    resident_kib: u64,
}

impl Held {
    fn now() -> Self {
        let count = |what| fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
        let text = |what| fs::read_to_string(format!("/proc/self/{what}")).unwrap();
        let status = text("status");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        Self {
            descriptors: count("fd"),
            threads: count("task"),
            mappings: text("maps").lines().count(),
            resident_kib: resident.trim().trim_end_matches(" kB").parse().unwrap(),
        }
    }
}

/// Asleep, but for what is typed: that it sends back.
fn sleeping(recorder: &Recorder) -> Vm {
    let builder = Vm::builder().kernel(volt_tests::small_guest()).cmdline("echo mib=8").memory_mib(64);
    let vm = builder.irqchip(IrqchipKind::Split).console(recorder.console()).start().unwrap();
    recorder.wait_for("ready\n");
    vm
}

/// One child, alive.
fn one(parent: &Vm) -> (Vm, Recorder) {
    let recorder = Recorder::default();
    let options = RestoreOptions { console: recorder.console(), ..RestoreOptions::default() };
    let child = parent.fork([options]).unwrap().pop().unwrap();
    (child, recorder)
}

fn answers((child, recorder): &(Vm, Recorder)) {
    child.type_in(b"x").unwrap();
    recorder.wait_for("x");
}

#[test]
fn three_hundred_forks_in_sequence_and_fifty_at_once_leave_nothing_behind() {
    needs!(kvm);
    if std::env::var_os(ALONE).is_none() {
        let name = "leaks::three_hundred_forks_in_sequence_and_fifty_at_once_leave_nothing_behind";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--test-threads=1"]).env(ALONE, "1");
        let outcome = Outcome::of_command(&mut command);
        assert!(outcome.status == 0 && outcome.stdout.contains("1 passed"), "{outcome:?}");
        return;
    }
    let recorder = Recorder::default();
    let parent = sleeping(&recorder);
    let in_sequence = |count: usize| (0..count).for_each(|_| answers(&one(&parent)));
    let at_once = |count: usize| {
        let children: Vec<_> = (0..count).map(|_| one(&parent)).collect();
        children.iter().for_each(answers);
    };
    in_sequence(20);
    at_once(50);
    let before = Held::now();
    in_sequence(300);
    at_once(50);
    wait_until("threads and descriptors are gone", || {
        let Held { descriptors, threads, .. } = Held::now();
        descriptors <= before.descriptors && threads <= before.threads
    });
    let after = Held::now();
    assert!(after.mappings <= before.mappings + 8, "{before:?}, then {after:?}");
    assert!(after.resident_kib <= before.resident_kib + 4096, "{before:?}, then {after:?}");
    answers(&(parent, recorder));
}
