//! `--confine strict` isolates the process of a VM.

use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use volt_tests::child::has_memfd;
use volt_tests::injected::vm_of;
use volt_tests::{Boot, Child, Guest, Network, Outcome, Scratch, needs, wait_until};

/// Kinds of namespaces, as in `/proc/PID/ns`.
const KINDS: [&str; 7] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];

fn namespace(pid: u32, kind: &str) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap()
}

fn strict(more: &[&str]) -> Guest {
    let strict = ["--confine", "strict"].iter().chain(more).copied();
    let mut guest = Boot::small("count").vcpus(2).device(strict).start();
    guest.next_number("count");
    guest
}

fn assert_isolated(guest: &Guest) {
    let vm = vm_of(guest.pid());
    for kind in KINDS {
        let own = namespace(std::process::id(), kind);
        assert_ne!(namespace(vm, kind), own, "{kind}");
    }
    let status = fs::read_to_string(format!("/proc/{vm}/status")).unwrap();
    assert!(status.lines().any(|line| line == "CapEff:\t0000000000000000"), "{status}");
    let map = fs::read_to_string(format!("/proc/{vm}/uid_map")).unwrap();
    let user = rustix::process::geteuid().as_raw().to_string();
    assert_eq!(map.split_whitespace().collect::<Vec<_>>(), [&user, &user, "1"]);
}

#[test]
fn strict_process_has_namespaces_of_its_own_and_no_capability() {
    needs!(kvm, root);
    let directory = std::env::temp_dir();
    let guest = strict(&["--rng", "--allow-path", directory.to_str().unwrap()]);
    assert_isolated(&guest);
    let outcome = Outcome::of(["doctor", "--security", guest.socket().to_str().unwrap(), "--json"]);
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(report["pid"], vm_of(guest.pid()), "{report}");
    let snapshot = guest.snapshot();
    let mut clone = snapshot.restore_as(&["--confine", "strict"]);
    clone.next_number("count");
    assert_isolated(&clone);
}

#[test]
fn end_and_signals_of_a_strict_guest_are_those_of_its_process() {
    needs!(kvm, root);
    let mut guest = strict(&[]);
    let vm = vm_of(guest.pid());
    guest.signal(Signal::TERM);
    assert_eq!(guest.wait_exit().status, 128 + 15);
    wait_until("the VM's process ended", || !fs::exists(format!("/proc/{vm}")).unwrap());
    let mut guest = strict(&[]);
    let vm = vm_of(guest.pid());
    guest.signal(Signal::KILL);
    guest.wait_exit();
    wait_until("the VM ended with its keeper", || !fs::exists(format!("/proc/{vm}")).unwrap());
}

/// Starts a strict guest with a disk, a vsock device and one directory that it may use, and returns both.
fn strict_guest_with_devices(scratch: &Scratch) -> (Guest, PathBuf) {
    let allowed = scratch.path("allowed");
    fs::create_dir(&allowed).unwrap();
    let image = scratch.path("image");
    fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
    let disk = format!("path={},layer={},id=root", image.display(), scratch.path("layer").display());
    let vsock = format!("cid=3,socket={}", scratch.path("vsock").display());
    let allow = ["--confine", "strict", "--allow-path", allowed.to_str().unwrap()];
    let mut guest = Boot::small("disk-churn mib=4")
        .device(["--disk", &disk])
        .device(["--vsock", &vsock])
        .device(allow)
        .start();
    guest.wait_for("ready");
    (guest, allowed)
}

#[test]
fn strict_guest_has_an_empty_root_and_leaves_no_socket() {
    needs!(kvm, root);
    let scratch = Scratch::new();
    let (mut guest, _) = strict_guest_with_devices(&scratch);
    let root = format!("/proc/{}/root", vm_of(guest.pid()));
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0, "the root directory of the VM's process");
    let sockets = [scratch.path("vsock"), guest.socket().to_owned()];
    for socket in &sockets {
        assert!(socket.exists(), "{}", socket.display());
    }
    guest.signal(Signal::TERM);
    assert_eq!(guest.wait_exit().status, 128 + 15);
    for socket in &sockets {
        assert!(!socket.exists(), "{}", socket.display());
    }
}

#[test]
fn strict_guest_is_saved_and_forked_within_its_bounds_alone() {
    needs!(kvm, root);
    let scratch = Scratch::new();
    let (guest, allowed) = strict_guest_with_devices(&scratch);
    let refused = guest.try_snapshot(&scratch.path("outside"));
    refused.failed_with(&["--allow-path"]);
    assert!(!scratch.path("outside").exists());
    let full = guest.try_snapshot(&allowed.join("full"));
    assert_eq!(full.status, 0, "{full:?}");
    let socket = guest.socket();
    let taken = Outcome::of([
        "snapshot".as_ref(),
        "create".as_ref(),
        allowed.join("diff").as_os_str(),
        "--diff".as_ref(),
        "--api-socket".as_ref(),
        socket.as_os_str(),
    ]);
    assert_eq!(taken.status, 0, "{taken:?}");
    let fork = |directory: &std::path::Path, layer: &std::path::Path| {
        fs::create_dir_all(directory).unwrap();
        let (child, vsock) = (directory.join("one.sock"), directory.join("vsock"));
        let disk = format!("id=root,layer={}", layer.display());
        let vsock = format!("socket={}", vsock.display());
        let child = child.to_str().unwrap();
        let socket = socket.to_str().unwrap();
        Outcome::of(["fork", "--api-socket", socket, "--child", child, "--vsock", &vsock, "--disk", &disk])
    };
    let (elsewhere, children) = (scratch.path("elsewhere"), allowed.join("children"));
    fork(&elsewhere, &children.join("layer")).failed_with(&["--allow-path"]);
    fork(&children, &elsewhere.join("layer")).failed_with(&["--allow-path"]);
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    let forked = fork(&children, &children.join("layer"));
    assert_eq!(forked.status, 0, "{forked:?}");
    let child = children.join("one.sock");
    let outcome = Outcome::of(["doctor", "--security", child.to_str().unwrap(), "--json"]);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    let pid = u32::try_from(report["pid"].as_u64().unwrap()).unwrap();
    assert_eq!(fs::read_dir(format!("/proc/{pid}/root")).unwrap().count(), 0);
    assert!(!has_memfd(pid, "volt-working-set"), "children write nothing that others read");
    Child::from_line(forked.stdout.trim_end(), &children.join("serial")).stop();
    wait_until("the child is gone", || !fs::exists(format!("/proc/{pid}")).unwrap());
    assert_eq!(fs::read_dir(&children).unwrap().count(), 1, "its layer alone is left");
}

#[test]
fn strict_guest_is_rewound_and_restored_from_a_shared_pager() {
    needs!(kvm, root);
    let scratch = Scratch::new();
    let snapshot = Boot::small("count").start().snapshot_as(&["--compress", "lz4"]);
    let pagers = scratch.path("pagers");
    let strict = ["--confine", "strict", "--pager", "shared", "--pager-dir", pagers.to_str().unwrap()];
    let mut guest = snapshot.restore_as(&strict);
    let first = guest.next_number("count");
    assert_isolated(&guest);
    let socket = guest.socket().to_str().unwrap().to_owned();
    // A line that the rewind cuts would go on with one of the snapshot's instant.
    let _ = guest.paused_in_whole_lines();
    Outcome::of(["rewind", "--api-socket", &socket]).succeeded();
    guest.resume();
    wait_until("it counts from the start again", || guest.next_number("count") <= first + 1);
}

#[test]
fn strict_guest_uses_a_tap_of_the_network_in_which_it_was_started() {
    needs!(kvm, root, network);
    let network = Network::new();
    network.add_tap("strict0", "10.7.0.1/24");
    let boot = |tap: &str| {
        let tap = format!("id=eth0,tap={tap}");
        Boot::small("net").inside(network.namespace()).device(["--confine", "strict", "--net", &tap])
    };
    let mut guest = boot("strict0").start();
    guest.wait_for("ready");
    assert_isolated(&guest);
    // A tap that it would have to make takes a capability, which it gave up.
    let refused = boot("missing").outcome();
    assert!(refused.status == 1 && refused.stderr.contains("CAP_NET_ADMIN"), "{refused:?}");
}

#[test]
fn passt_of_a_strict_guest_forwards_a_port_whose_holder_is_named() {
    needs!(kvm, root, network, passt);
    let network = Network::new();
    network.add_tap("way", "192.0.2.1/24");
    network.ip("route add default via 192.0.2.254");
    let boot = || {
        let network = network.namespace();
        Boot::small("net").inside(network).device(["--confine", "strict", "--net", "passt,forward=8080:80"])
    };
    let mut guest = boot().start();
    guest.wait_for("ready");
    assert_isolated(&guest);
    let _forwarded = network.connect("127.0.0.1:8080");
    // passt is a child of the starter, whose parent is the process that was started.
    let refused = boot().outcome();
    let holder = format!("(process {}: ", guest.pid());
    assert!(refused.status == 1 && refused.stderr.contains(&holder), "{holder} {refused:?}");
}
