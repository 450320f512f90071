//! Random numbers of clones: those of the kernel, and those of generators in programs.

use std::collections::HashSet;

use volt_tests::{Snapshot, clones, need, needs, wait_until};

use super::runs::{IMAGE, Images};

/// Four processes for numbers of the kernel (tests/guests/draws.c). They draw without a pause from the hook
/// before the freeze on. Another hook marks the moment before the thaw of a clone, in which each process then
/// draws so many.
const DRAWS: &str = "
    for hook in pre-snapshot post-restore; do
        mkdir -p /etc/volt/$hook.d
        [ $hook = pre-snapshot ] && act='go /dev/shm/draws 3' || act='mark /dev/shm/draws'
        echo \"#!/bin/sh
            exec /bin/draws $act\" >/etc/volt/$hook.d/draws
        chmod 755 /etc/volt/$hook.d/draws
    done
    exec draws start /dev/shm/draws";
/// Processes that draw, and the numbers of each that are told.
const PROCESSES: usize = 4;
const TOLD: usize = 500;
/// The words that start a VM `web`.
const STARTS: [&str; 4] = ["run", "--detach", "--name", "web"];
/// The path of programs, with that of Python.
const PATH: &str = "PATH=/bin:/usr/bin";
/// Pairs of clones, of which one at least repeats numbers without the freeze. Each pair has its own capture:
/// in some captures, the agent of both clones reseeds the kernel before a process draws.
const PAIRS: usize = 6;

/// Numbers of 16 bytes of several VMs.
#[derive(Default)]
struct Seen {
    numbers: HashSet<String>,
    repeated: usize,
}

impl Seen {
    /// Adds the numbers of a VM whose calls began after its mark, or after this TSC.
    fn add(&mut self, images: &Images, vm: &str, from: Option<u64>) {
        let from = from.map(|from| from.to_string());
        let words = ["exec", vm, "draws", "tell", "/dev/shm/draws"];
        let outcome = images.run(&[&words[..], from.as_deref().as_slice()].concat());
        let numbers: Vec<_> = outcome.succeeded().stdout.lines().collect();
        assert!(numbers.iter().all(|number| number.len() == 32), "{vm}: {}", outcome.stdout);
        assert!((1..=PROCESSES * TOLD).contains(&numbers.len()), "{vm}: {} numbers", numbers.len());
        assert!(from.is_some() || numbers.len() == PROCESSES * TOLD, "{vm}: {} numbers", numbers.len());
        for number in numbers {
            self.repeated += usize::from(!self.numbers.insert(number.to_owned()));
        }
    }
}

/// The TSC of the guest at the capture of a snapshot with this name.
fn captured_at(images: &Images, name: &str) -> u64 {
    let directory = images.names.scratch().path(&format!("data/volt-vmm/snapshots/{name}"));
    let state = Snapshot::at(directory, images.names.scratch()).state();
    state["machine"]["vcpus"][0]["msrs"]["0x10 tsc"].as_u64().expect("a TSC")
}

/// Runs a clone of a snapshot until its numbers are seen.
fn see_clone(images: &Images, (snapshot, number): (&str, usize), from: Option<u64>, seen: &mut Seen) {
    let required = if from.is_none() { "--require-agent" } else { "" };
    let clone = format!("{snapshot}-{number}");
    images.names.ok(&format!("restore --detach {required} --name {clone} {snapshot}"));
    seen.add(images, &clone, from);
    images.names.ok(&format!("kill {clone}"));
}

/// How many numbers two clones of a snapshot share since its capture.
fn shared_by_pair(images: &Images, snapshot: &str) -> usize {
    let captured = captured_at(images, snapshot);
    let mut seen = Seen::default();
    for number in 0..2 {
        see_clone(images, (snapshot, number), Some(captured), &mut seen);
    }
    println!("without the freeze {} of {} numbers came twice", seen.repeated, seen.numbers.len());
    seen.repeated
}

/// Clones a VM with and without a freeze, and compares the numbers that the kernel gives to the clones.
fn compare(vcpus: &str, vmgenid: &str) {
    let images = Images::new();
    let options = ["--vcpus", vcpus, "--vmgenid", vmgenid, "--memory", "160M", "--upper", "memory"];
    images.run(&[&STARTS[..], &options, &[IMAGE, "sh", "-c", DRAWS]].concat()).succeeded();
    images.names.wait_for("web", "started\n");

    images.names.ok("snapshot create --quiesce web quiet");
    images.run(&["exec", "web", "draws", "go", "/dev/shm/draws", "600"]).succeeded();
    for number in 0..PAIRS {
        // A pause stops vCPUs amid their work, and no process waits.
        images.names.ok("pause web");
        images.names.ok(&format!("snapshot create web plain-{number}"));
        images.names.ok("resume web");
    }
    images.names.ok("kill web");

    // One clone runs at a time.
    let mut seen = Seen::default();
    for number in 0..clones() {
        see_clone(&images, ("quiet", number), None, &mut seen);
        assert_eq!(seen.repeated, 0, "clone {number}");
    }
    println!("with the freeze none of {} numbers came twice", seen.numbers.len());

    let finds_repeats = (0..PAIRS).any(|pair| shared_by_pair(&images, &format!("plain-{pair}")) > 0);
    assert!(finds_repeats, "{PAIRS} pairs of clones share nothing: this check finds nothing");
}

#[test]
fn numbers_of_the_kernel_repeat_without_the_freeze_and_never_with_it() {
    needs!(kvm, linux, agent);
    // With one vCPU, the generation id would keep plain clones apart.
    compare("1", "off");
}

#[test]
fn numbers_repeat_on_four_vcpus_without_the_freeze_and_never_with_it() {
    needs!(kvm, linux, agent);
    compare("4", "on");
}

/// Two processes with generators of Python and OpenSSL. The hook reseeds those of one of them.
const GENERATORS: &str = r#"
import _ssl, os, random, signal, time

def reseed(*_):
    random.seed()
    _ssl.RAND_add(os.urandom(32), 32)

name = "hooked" if os.fork() else "other"
if name == "hooked":
    signal.signal(signal.SIGUSR1, reseed)
    with open("/hooked.pid", "w") as file:
        file.write(str(os.getpid()))
random.random(), _ssl.RAND_bytes(1)
open(f"/{name}.ready", "w").close()
while not os.path.exists("/draw"):
    time.sleep(0.05)
with open(f"/{name}.drawn", "w") as file:
    file.write(f"{random.getrandbits(64):016x} {_ssl.RAND_bytes(8).hex()}\n")
time.sleep(100000)
"#;

/// Starts it, and has the hook.
const STARTS_GENERATORS: &str = "
    for part in usr lib lib64; do ln -s /python/$part /$part; done
    mkdir -p /etc/volt/post-restore.d
    echo '#!/bin/sh
        kill -USR1 $(cat /hooked.pid)' >/etc/volt/post-restore.d/reseed
    chmod 755 /etc/volt/post-restore.d/reseed
    exec python3 -I -S -c \"$GENERATORS\"";

/// Numbers that a clone draws of both generators: in a process without the hook, in one with it, and in one
/// that starts afterwards.
fn drawn_by_generators(images: &Images, clone: &str) -> [Vec<String>; 3] {
    images.names.ok(&format!("restore --detach --require-agent --name {clone} warm"));
    let script = ": >/draw
        until [ -s /hooked.drawn ] && [ -s /other.drawn ]; do sleep 0.05; done
        cat /other.drawn /hooked.drawn
        python3 -I -S -c 'import _ssl, random; print(random.random(), _ssl.RAND_bytes(8).hex())'";
    let drawn = images.run(&["exec", "-e", PATH, clone, "sh", "-c", script]).succeeded().stdout.clone();
    let lines: Vec<Vec<_>> = drawn.lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect();
    assert!(lines.iter().all(|line| line.len() == 2), "{drawn}");
    images.names.ok(&format!("kill {clone}"));
    lines.try_into().expect("three lines")
}

#[test]
fn generators_in_programs_repeat_unless_reseeded_or_started_later() {
    needs!(kvm, linux, agent, python);
    let images = Images::new();
    let volume = format!("{}:/python:ro", need::python_tree().display());
    let options = ["--memory", "160M", "--upper", "memory", "-v", &volume];
    let generators = format!("GENERATORS={GENERATORS}");
    let words = ["-e", PATH, "-e", &generators, IMAGE, "sh", "-c", STARTS_GENERATORS];
    images.run(&[&STARTS[..], &options, &words].concat()).succeeded();
    let ready = || images.run(&["exec", "web", "ls", "/hooked.ready", "/other.ready"]).status == 0;
    wait_until("both have their seeds", ready);
    images.names.ok("snapshot create --quiesce web warm");
    images.names.ok("kill web");
    let [one, two] = ["one", "two"].map(|clone| drawn_by_generators(&images, clone));
    println!("{one:?} {two:?}");
    assert_eq!(one[0], two[0], "without the hook");
    for (later, what) in [(1, "with the hook"), (2, "of a program that started afterwards")] {
        assert!(one[later][0] != two[later][0] && one[later][1] != two[later][1], "{what}");
        assert!(one[later][0] != one[0][0] && one[later][1] != one[0][1], "{what}");
    }
}
