//! Warm starts: later runs of an image are restored from a snapshot of its first VM.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::scope;

use rustix::fs::{SeekFrom, seek};
use volt_tests::{needs, wait_until};

use super::runs::{IMAGE, Images};

/// A word that must be in no warm snapshot.
const SECRET: &str = "a-word-of-one-run-alone";
/// Prints the place of the stack of process 1, which is another one after each boot.
const BOOT: &str = "grep stack /proc/1/maps";
/// Prints what VMs of one boot do not share.
const SCRIPT: &str = "hostname; echo $HOSTNAME $TOKEN;
                      grep 127.0.1.1 /etc/hosts; cat /proc/sys/kernel/random/uuid; exit 3";

/// Runs a script in a new VM. Returns the lines of its output, and its messages.
fn run(images: &Images, options: &[&str], script: &str) -> (Vec<String>, String) {
    let script = format!("{BOOT}; {script}");
    let words = [&["run", "--rm"], options, &[IMAGE, "sh", "-c", &script]].concat();
    let outcome = images.run(&words);
    assert_eq!(outcome.status, 3, "{outcome:?}");
    (outcome.stdout.lines().map(str::to_owned).collect(), outcome.messages())
}

/// Runs [`SCRIPT`] in a VM of this name. Returns the boot and the random number.
fn boot_of(images: &Images, name: &str, options: &[&str]) -> [String; 2] {
    let secret = format!("TOKEN={SECRET}");
    let (lines, messages) = run(images, &[&["--name", name, "-e", &secret], options].concat(), SCRIPT);
    let expected = [name.to_owned(), format!("{name} {SECRET}"), format!("127.0.1.1\t{name}")];
    assert_eq!(lines[1..4], expected, "{lines:?}");
    assert_eq!(messages, "");
    [lines[0].clone(), lines[4].clone()]
}

/// The directories of warm snapshots.
fn snapshots(images: &Images) -> Vec<PathBuf> {
    let entries = fs::read_dir(images.data().join("warm")).unwrap();
    entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect()
}

/// Whether the data of a sparse file contains a word, in one of its pages.
fn contains(path: &Path, word: &str) -> bool {
    let file = File::open(path).unwrap();
    let mut page = [0; 4096];
    let mut at = 0;
    while let Ok(data) = seek(&file, SeekFrom::Data(at)) {
        let count = file.read_at(&mut page, data).unwrap();
        if String::from_utf8_lossy(&page[..count]).contains(word) {
            return true;
        }
        at = data + count as u64;
    }
    false
}

/// Whether this kernel has `KVM_PRE_FAULT_MEMORY`: from Linux 6.11 on, with nested paging.
pub(super) fn kernel_can_pre_fault() -> bool {
    let pages = ["amd/parameters/npt", "intel/parameters/ept"];
    let pages = pages.map(|file| fs::read_to_string(format!("/sys/module/kvm_{file}")).unwrap_or_default());
    let has_nested_paging = pages.iter().any(|value| matches!(value.trim(), "Y" | "1"));
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let numbers: Vec<u32> = release.split(['.', '-']).take(2).map(|number| number.parse().unwrap()).collect();
    has_nested_paging && numbers >= vec![6, 11]
}

#[test]
fn later_runs_are_restored_and_nothing_of_a_run_is_in_the_snapshot() {
    needs!(kvm, linux, agent);
    let images = Images::cold();
    let [first, one] = boot_of(&images, "first-of-all", &[]);
    let found = snapshots(&images);
    assert_eq!(found.len(), 1, "{found:?}");
    for file in fs::read_dir(&found[0]).unwrap().map(|file| file.unwrap().path()) {
        let found = [SECRET, "first-of-all"].map(|word| contains(&file, word));
        assert_eq!(found, [false; 2], "{}", file.display());
    }
    let set = found[0].join("working-set");
    assert!(!set.exists(), "no VM has been restored yet");
    let [second, two] = boot_of(&images, "second", &[]);
    let kept = fs::read(&set).unwrap();
    let [third, three] = boot_of(&images, "third", &["-w", "/opaque"]);
    let [cold, four] = boot_of(&images, "cold", &["--cold"]);
    assert_eq!([&second, &third], [&first; 2], "one kernel has booted");
    assert_ne!(cold, first);
    assert_eq!(HashSet::from([one, two, three, four]).len(), 4, "no number came twice");
    // A disk of another size is another device.
    let [other, _] = boot_of(&images, "larger", &["--disk-size", "20G"]);
    assert!(other != first && snapshots(&images).len() == 2);
    assert_eq!(boot_of(&images, "larger-too", &["--disk-size", "20G"])[0], other);
    // The first restored VM has left what it touched, and later ones have that from the start.
    let log = images.names.scratch().path("log").display().to_string();
    let log_options = ["--log", &log, "--log-level", "debug"];
    let words =
        [&["run", "--detach", "--name", "ahead"], &log_options[..], &[IMAGE, "sleep", "9999"]].concat();
    images.run(&words).succeeded();
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains("the guest is awake"), "{text}");
    let has_failed = text.contains("memory is not mapped for the guest ahead");
    assert!(!has_failed || !kernel_can_pre_fault(), "{text}");
    let ahead = images.mapped_ahead("ahead");
    assert!(ahead["read"].as_u64() > Some(100) && ahead["read"] == ahead["pages"], "{ahead}");
    assert_eq!(fs::read(&set).unwrap(), kept, "it is kept once");
    images.names.ok("rm --force ahead");
    // A damaged set is replaced, and harms no run.
    fs::remove_file(&set).unwrap();
    fs::write(&set, "damaged").unwrap();
    assert_eq!(run(&images, &["--name", "after-damage"], SCRIPT).0[0], first);
    assert_eq!(fs::read(&set).unwrap()[..8], kept[..8], "there is another one");
    // A command that prints nothing has one too.
    fs::remove_file(&set).unwrap();
    images.run(&["run", "--detach", "--name", "silent", IMAGE, "sleep", "9999"]).succeeded();
    wait_until("it is kept after a while", || set.exists());
    images.names.ok("rm --force silent");
    images.are_empty();
}

#[test]
fn restored_vm_has_no_past_to_return_to() {
    needs!(kvm, linux, agent);
    let images = Images::new();
    let words = |name| {
        ["run", "--detach", "--name", name, IMAGE, "sh", "-c", "trap 'exit 0' TERM; sleep 9999 & wait"]
    };
    images.run(&words("one")).succeeded();
    images.run(&words("web")).succeeded();
    images.names.run("rewind web").refused(&["not restored from a snapshot"]);
    for vm in ["one", "web"] {
        images
            .names
            .run(&format!("snapshot create --diff {vm} diff-{vm}"))
            .refused(&["take a full snapshot first"]);
    }
    images.names.ok("snapshot create web full");
    images.run(&["exec", "web", "sh", "-c", "echo later >/later"]).succeeded();
    images.names.ok("snapshot create --diff web diff");
    images.names.ok("restore --detach --name clone diff");
    assert_eq!(images.run(&["exec", "clone", "cat", "/later"]).stdout, "later\n");
    ["one", "web", "clone"].iter().for_each(|vm| drop(images.names.ok(&format!("rm --force {vm}"))));
    images.are_empty();
}

#[test]
fn volumes_are_those_of_each_run() {
    needs!(kvm, linux, agent);
    let images = Images::cold();
    let directory = images.names.scratch().path("directory");
    fs::create_dir(&directory).unwrap();
    let mount = format!("{}:/packed:ro", directory.display());
    let script = "cat /kept/file /packed/file; echo $RUN >>/kept/file; exit 3";
    let mut lines = Vec::new();
    for number in ["1", "2", "3"] {
        fs::write(directory.join("file"), format!("packed {number}\n")).unwrap();
        let variable = format!("RUN={number}");
        let options = ["-v", "data:/kept", "-v", &mount, "-e", &variable];
        lines.push(run(&images, &options, script).0);
    }
    assert_eq!(lines[0][1..], ["packed 1"]);
    assert_eq!(lines[1][1..], ["1", "packed 2"]);
    assert_eq!(lines[2][1..], ["1", "2", "packed 3"]);
    assert_eq!([&lines[1][0], &lines[2][0]], [&lines[0][0]; 2], "one kernel has booted");
    // A VM that has another number of disks boots.
    assert_ne!(run(&images, &["-v", "data:/kept"], script).0[0], lines[0][0]);
    assert_eq!(snapshots(&images).len(), 2);
    images.are_empty();
}

#[test]
fn snapshot_is_made_ahead_once_and_goes_for_a_newer_one() {
    needs!(kvm, linux, agent);
    let images = Images::cold();
    images.run(&["image", "warm", IMAGE, "true"]).refused(&["leave out COMMAND"]);
    scope(|scope| {
        let makers = [(); 2].map(|()| scope.spawn(|| images.run(&["image", "warm", IMAGE])));
        let outcomes = makers.map(|maker| maker.join().unwrap());
        let made = outcomes.iter().filter(|outcome| outcome.status == 0 && outcome.messages().is_empty());
        assert_eq!(made.count(), 1, "{outcomes:?}");
    });
    let made = snapshots(&images);
    assert_eq!(made.len(), 1);
    let again = images.run(&["image", "warm", IMAGE]);
    assert!(again.succeeded().stderr.contains("a warm snapshot already"), "{again:?}");
    let [boot, _] = boot_of(&images, "one", &[]);
    assert_eq!(boot_of(&images, "two", &[])[0], boot);
    // A damaged one is replaced.
    let state = made[0].join("state.json");
    OpenOptions::new().write(true).open(&state).unwrap().set_len(100).unwrap();
    let (lines, messages) = run(&images, &[], SCRIPT);
    assert!(messages.contains("cannot be used and is removed") && lines[0] != boot, "{messages}");
    assert_eq!(boot_of(&images, "three", &[])[0], lines[0]);
    // One of another shape leaves no room for it, unless there is none for that one.
    let before = snapshots(&images);
    boot_of(&images, "four", &["--memory", "256M", "--warm-cache", "1M"]);
    assert_eq!(snapshots(&images), before);
    boot_of(&images, "five", &["--memory", "256M", "--warm-cache", "64M"]);
    let newer = snapshots(&images);
    assert!(newer.len() == 1 && newer != made, "{newer:?}");
    images.are_empty();
}
