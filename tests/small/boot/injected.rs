//! An attacker's code in any thread of a VM's process reaches nothing outside it. Each call is made in each
//! kind of thread.

use std::fs::File;

use volt_tests::injected::{children_of, inject, threads_of};
use volt_tests::{Boot, Guest, Scratch, Snapshot, needs, wait_until};

/// Calls that code in a confined thread would want, and may not make.
fn attempts(other: &Guest) -> [(&'static str, libc::c_long, [i64; 3]); 9] {
    let code = [0, 4096, libc::PROT_EXEC.into()];
    [
        ("execve", libc::SYS_execve, [0; 3]),
        ("ptrace", libc::SYS_ptrace, [libc::PTRACE_ATTACH.into(), other.pid().into(), 0]),
        ("open", libc::SYS_open, [0; 3]),
        ("openat", libc::SYS_openat, [libc::AT_FDCWD.into(), 0, 0]),
        ("socket", libc::SYS_socket, [libc::AF_UNIX.into(), libc::SOCK_STREAM.into(), 0]),
        ("connect", libc::SYS_connect, [0; 3]),
        ("mprotect", libc::SYS_mprotect, code),
        ("ioctl", libc::SYS_ioctl, [0, libc::TIOCSTI.into(), 0]),
        ("kill", libc::SYS_kill, [other.pid().into(), libc::SIGKILL.into(), 0]),
    ]
}

/// A guest whose process has a thread of each kind, as a snapshot.
fn guest_with_all_threads(scratch: &Scratch) -> Snapshot {
    let image = scratch.path("image");
    File::create(&image).unwrap().set_len(4 << 20).unwrap();
    let disk = format!("path={},layer={},id=root", image.display(), scratch.path("layer").display());
    let mut guest =
        Boot::small("disk-churn mib=4").vcpus(2).device(["--rng"]).device(["--disk", &disk]).start();
    guest.wait_for("ready");
    guest.snapshot_as(&["--compress", "lz4"])
}

/// The threads of a restored VM's process: two vCPUs, one that answers page faults, the starter of devices, a
/// disk, and workers.
const THREADS: [&str; 9] = [
    "volt-vmm",
    "volt-vcpu1",
    "volt-pager",
    "volt-devices",
    "volt-disk-root",
    "volt-session",
    "volt-signals",
    "volt-input",
    "volt-api",
];

/// Waits for a thread of the guest's process.
fn thread_of(guest: &Guest, name: &str) -> i32 {
    let mut found = None;
    wait_until(&format!("there is a thread {name}"), || {
        found = threads_of(guest.pid()).into_iter().find(|(other, _)| other == name);
        found.is_some()
    });
    found.unwrap().1
}

#[test]
fn forbidden_calls_end_the_process_in_every_kind_of_thread() {
    needs!(kvm, root);
    let scratch = Scratch::new();
    let snapshot = guest_with_all_threads(&scratch);
    let other = snapshot.restore();
    for thread in THREADS {
        for (name, call, arguments) in attempts(&other) {
            let mut guest = snapshot.restore();
            thread_of(&guest, "volt-api"); // the last to start
            inject(thread_of(&guest, thread), call, arguments);
            let outcome = guest.wait_exit();
            let named =
                format!("thread {thread} made a system call that its seccomp filter forbids: {name}(");
            assert!(outcome.stderr.contains(&named), "{thread} {name}: {outcome:?}");
            assert_eq!(outcome.status, 6, "{thread} {name}: {outcome:?}");
        }
    }
}

/// Waits for the guest's opener.
fn opener_of(guest: &Guest) -> i32 {
    let mut found = None;
    wait_until("there is an opener", || {
        found = children_of(guest.pid()).into_iter().find(|(name, _)| name == "volt-opener");
        found.is_some()
    });
    found.unwrap().1
}

#[test]
fn opener_starts_no_program_and_sends_no_signal() {
    needs!(kvm, root);
    let scratch = Scratch::new();
    let snapshot = guest_with_all_threads(&scratch);
    let other = snapshot.restore();
    for (name, call, arguments) in attempts(&other) {
        if ["open", "openat", "socket", "connect"].contains(&name) {
            continue; // its duties
        }
        let guest = snapshot.restore();
        // It is confined by the time it has answered.
        assert_eq!(guest.try_snapshot(&scratch.fresh("snapshot")).status, 0);
        inject(opener_of(&guest), call, arguments);
        let named = format!("thread volt-opener made a system call that its seccomp filter forbids: {name}(");
        wait_until(&named, || guest.stderr().contains(&named));
    }
}

#[test]
fn vm_goes_on_without_its_opener_and_a_killed_one_leaves_no_process() {
    needs!(kvm);
    let scratch = Scratch::new();
    let mut guest = Boot::small("count").start();
    guest.next_number("count");
    let mut beside = Vec::new();
    wait_until("there are an opener and a starter", || {
        beside = children_of(guest.pid());
        let names: Vec<_> = beside.iter().map(|(name, _)| name.as_str()).collect();
        names == ["volt-opener", "volt-starter"]
    });
    let opener = rustix::process::Pid::from_raw(beside[0].1).unwrap();
    rustix::process::kill_process(opener, rustix::process::Signal::KILL).unwrap();
    let refused = guest.try_snapshot(&scratch.path("snapshot"));
    refused.failed_with(&["the process that opens files"]);
    assert!(!scratch.path("snapshot").exists());
    guest.next_number("count");
    guest.kill();
    for (name, pid) in beside {
        wait_until(&format!("{name} is gone"), || !std::fs::exists(format!("/proc/{pid}")).unwrap());
    }
}

#[test]
fn second_signal_ends_a_vm_whose_opener_hangs() {
    needs!(kvm);
    use rustix::process::{Pid, Signal, kill_process};
    let mut guest = Boot::small("count").start();
    guest.next_number("count");
    let opener = Pid::from_raw(opener_of(&guest)).unwrap();
    // As if a file system did not answer.
    kill_process(opener, Signal::STOP).unwrap();
    guest.signal(Signal::TERM);
    wait_until("the first signal is received", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", guest.pid())).unwrap();
        status.lines().any(|line| line == "ShdPnd:\t0000000000000000")
    });
    guest.signal(Signal::TERM);
    let outcome = guest.wait_exit();
    kill_process(opener, Signal::CONT).unwrap();
    assert_eq!(outcome.status, 128 + Signal::TERM.as_raw(), "{outcome:?}");
}
