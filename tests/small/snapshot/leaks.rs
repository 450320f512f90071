//! Many forks: each child's resources are freed when it ends.

use std::fs;
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use volt_tests::guest::resident_kib;
use volt_tests::{Outcome, Recorder, needs, patience, wait_until};
use volt_vmm::{IrqchipKind, RestoreOptions, Vm};

/// Set in a process of the test's own, because other tests of this process have descriptors and threads, too.
const ALONE: &str = "VOLT_ALONE";

/// The resources that a process holds.
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
        Self {
            descriptors: count("fd"),
            threads: count("task"),
            mappings: text("maps").lines().count(),
            resident_kib: resident_kib(std::process::id()),
        }
    }
}

/// Boots a guest that sleeps and echoes its input.
fn sleeping(recorder: &Recorder) -> Vm {
    let builder = Vm::builder().kernel(volt_tests::small_guest()).cmdline("echo mib=8").memory_mib(64);
    let vm = builder.irqchip(IrqchipKind::Split).console(recorder.console()).start().unwrap();
    recorder.wait_for("ready\n");
    vm
}

/// Forks one child.
fn one(parent: &Vm) -> (Vm, Recorder) {
    let recorder = Recorder::default();
    let options = RestoreOptions::default().console(recorder.console());
    let child = parent.fork([options]).unwrap().pop().unwrap();
    (child, recorder)
}

fn answers((child, recorder): &(Vm, Recorder)) {
    child.type_in(b"x").unwrap();
    recorder.wait_for("x");
}

/// Returns how many children live at once and how many come in sequence: 50 and 300, or the numbers of
/// `VOLT_FORKS`, such as `1000,10000`.
fn forks() -> (usize, usize) {
    let given = std::env::var("VOLT_FORKS").ok().filter(|given| !given.is_empty());
    let given = given.unwrap_or_else(|| "50,300".to_owned());
    let numbers =
        given.split_once(',').and_then(|(alive, rest)| Some((alive.parse().ok()?, rest.parse().ok()?)));
    numbers.expect("VOLT_FORKS is two numbers with a comma between them")
}

/// Raises the limit on descriptors to this user's maximum, because a VM has about twenty.
fn allow_many_descriptors() {
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).unwrap();
}

#[test]
fn hundreds_of_forks_leave_nothing_behind() {
    needs!(kvm);
    let (alive, in_sequence) = forks();
    if std::env::var_os(ALONE).is_none() {
        let name = "snapshot::leaks::hundreds_of_forks_leave_nothing_behind";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--test-threads=1"]).env(ALONE, "1");
        let outcome = Outcome::of_command_within(&mut command, patience() * (1 + in_sequence as u32 / 1000));
        assert!(outcome.status == 0 && outcome.stdout.contains("1 passed"), "{outcome:?}");
        return;
    }
    allow_many_descriptors();
    let recorder = Recorder::default();
    let parent = sleeping(&recorder);
    let one_by_one = |count: usize| (0..count).for_each(|_| answers(&one(&parent)));
    let at_once = |count: usize| {
        let children: Vec<_> = (0..count).map(|_| one(&parent)).collect();
        children.iter().for_each(answers);
    };
    one_by_one(20);
    at_once(alive);
    let before = Held::now();
    one_by_one(in_sequence);
    at_once(alive);
    wait_until("threads and descriptors are gone", || {
        let Held { descriptors, threads, .. } = Held::now();
        descriptors <= before.descriptors && threads <= before.threads
    });
    let after = Held::now();
    assert!(after.mappings <= before.mappings + 8, "{before:?}, then {after:?}");
    assert!(after.resident_kib <= before.resident_kib + 4096, "{before:?}, then {after:?}");
    answers(&(parent, recorder));
}
