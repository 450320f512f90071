//! Forks of a running guest: each child has its own process and continues from the same instant.

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};
use volt_tests::child::has_memfd;
use volt_tests::vsock::connect;
use volt_tests::{
    Boot, Child, Guest, Outcome, Scratch, Snapshot, consecutive, limited, needs, numbers, rest, streams,
    wait_until,
};

fn counting() -> Guest {
    let mut guest = Boot::small("count mib=4").start();
    guest.wait_for("count 10\n");
    guest
}

fn fork(guest: &Guest, names: &[&str]) -> Vec<Child> {
    let children: Vec<_> = names.iter().map(|name| (*name, json!({}))).collect();
    Child::fork(guest.socket(), guest.scratch().directory(), &children, false)
}

/// Waits until the child has checked all of its memory twice.
fn goes_on(child: &Child) {
    let first = numbers(&child.output(), "count").last().copied().unwrap_or(0);
    child.reaches("count", first + 40);
    assert!(!child.output().contains("WRONG"), "{}", child.output());
}

fn is_there(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Counts the children of this scratch directory's VMs.
fn forked_in(scratch: &Scratch) -> usize {
    let of_ours = |id: &String| {
        let command = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).into_owned();
        command.contains("forked") && command.contains(scratch.directory().to_str().unwrap())
    };
    volt_tests::scratch::list("/proc".as_ref()).iter().filter(|id| of_ours(id)).count()
}

#[test]
fn eight_children_and_their_parent_continue_from_one_instant() {
    needs!(kvm);
    let mut guest = counting();
    let before = guest.paused_in_whole_lines();
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let children = fork(&guest, &names);
    for child in &children {
        goes_on(child);
        assert!(child.ask("GET", "/", "").1.contains(child.id()), "the API has another id");
    }
    // No child lacks or repeats a number.
    guest.resume();
    while guest.next_number("count") < consecutive(&before, "count") + 40 {}
    for child in &children {
        assert_eq!(child.ask("PATCH", "/vm", r#"{"state":"Paused"}"#).0, 204);
        consecutive(&(before.clone() + &child.output()), "count");
    }
    guest.pause();
    consecutive(&guest.settled_output(), "count");
    // A paused child does not hold up another.
    assert_eq!(children[3].ask("PATCH", "/vm", r#"{"state":"Resumed"}"#).0, 204);
    goes_on(&children[3]);
    let pids: Vec<_> = children.iter().map(Child::pid).collect();
    children.into_iter().for_each(Child::stop);
    assert!(!pids.into_iter().any(is_there), "a process or a zombie is left");
}

#[test]
fn running_guest_and_its_children_can_be_forked() {
    needs!(kvm);
    let mut guest = counting();
    let before = guest.next_number("count");
    let children = fork(&guest, &["one", "two"]);
    guest.pause();
    let after = *numbers(&guest.settled_output(), "count").last().unwrap();
    for child in &children {
        goes_on(child);
        let first = numbers(&child.output(), "count")[0];
        // The fork may come within a line, whose number then belongs to neither output.
        assert!(before <= first && first <= after + 2, "{before} {first} {after}");
    }
    let scratch = guest.scratch().clone();
    let named = [("third", json!({})), ("fourth", json!({}))];
    let grandchildren = Child::fork(children[0].socket(), scratch.directory(), &named, false);
    grandchildren.iter().for_each(goes_on);
    let again = Child::fork(grandchildren[1].socket(), scratch.directory(), &[("fifth", json!({}))], false);
    // Children need no living ancestor.
    drop(guest);
    drop(children);
    for child in grandchildren.iter().chain(&again) {
        goes_on(child);
    }
    grandchildren.into_iter().chain(again).for_each(Child::stop);
}

#[test]
fn children_outlive_their_parent() {
    needs!(kvm);
    let mut guest = counting();
    let children = fork(&guest, &["one", "two"]);
    for child in &children {
        // The child has its own session, so the parent's terminal cannot signal it.
        assert_eq!(child.stat(6), child.pid().to_string());
        let name = fs::read_to_string(format!("/proc/{}/comm", child.pid())).unwrap();
        assert_eq!(name, "volt-vmm\n", "the process has another name");
    }
    guest.signal(Signal::INT);
    assert_eq!(guest.wait_exit().status, 130);
    children.iter().for_each(goes_on);
    let scratch = guest.scratch().clone();
    drop(guest);
    // A child without a parent can be forked and snapshotted, as a diff, too.
    let child = Child::fork(children[0].socket(), scratch.directory(), &[("three", json!({}))], false);
    goes_on(&child[0]);
    let snapshot = |kind: &str| {
        let directory = scratch.fresh("snapshot");
        let request = json!({"snapshot_path": directory, "snapshot_type": kind}).to_string();
        assert_eq!(child[0].ask("PUT", "/snapshot/create", &request), (204, String::new()));
        Snapshot::at(directory, &scratch)
    };
    let full = snapshot("Full");
    goes_on(&child[0]);
    let mut restored = snapshot("Diff").restore();
    let first = restored.next_number("count");
    while restored.next_number("count") < first + 40 {}
    drop(full);
    children.into_iter().chain(child).for_each(Child::stop);
}

#[test]
fn children_of_a_clone_make_diffs_of_its_snapshot() {
    needs!(kvm);
    let guest = counting();
    let base = guest.snapshot();
    drop(guest);
    let mut clone = base.restore();
    clone.next_number("count");
    let scratch = clone.scratch().clone();
    let children = fork(&clone, &["one"]);
    goes_on(&children[0]);
    let directory = scratch.fresh("diff");
    let request = json!({"snapshot_path": directory, "snapshot_type": "Diff"}).to_string();
    assert_eq!(children[0].ask("PUT", "/snapshot/create", &request), (204, String::new()));
    let diff = Snapshot::at(directory, &scratch);
    assert!(diff.diff_path().exists());
    assert_eq!(diff.state()["metadata"]["base"]["path"], base.directory().to_str().unwrap());
    let mut restored = diff.merged().restore();
    let first = restored.next_number("count");
    while restored.next_number("count") < first + 40 {}
    assert!(!restored.output().contains("WRONG"));
}

#[test]
fn paused_children_wait_until_they_are_resumed() {
    needs!(kvm);
    let guest = counting();
    let named = [("one", json!({})), ("two", json!({}))];
    let children = Child::fork(guest.socket(), guest.scratch().directory(), &named, true);
    for child in &children {
        assert!(child.ask("GET", "/", "").1.contains(r#""state":"Paused""#));
        assert_eq!(child.output(), "");
    }
    assert_eq!(children[1].ask("PATCH", "/vm", r#"{"state":"Resumed"}"#).0, 204);
    goes_on(&children[1]);
    assert_eq!(children[0].output(), "");
}

/// Starts a guest that writes to a disk `root` of 1 MiB through a layer. Returns the base and the guest.
fn with_layer(scratch: &Scratch) -> (PathBuf, Guest) {
    let (base, layer) = (scratch.fresh("base"), scratch.fresh("layer"));
    fs::write(&base, vec![7; 1 << 20]).unwrap();
    let words = format!("path={},layer={},id=root", base.display(), layer.display());
    (base, Boot::small("disk").scratch(scratch).device(["--disk".to_owned(), words]).start())
}

#[test]
fn each_child_has_its_own_layer_over_the_parents_writes() {
    needs!(kvm);
    let scratch = Scratch::new();
    let (base, mut guest) = with_layer(&scratch);
    while guest.next_number("sector") < 70 {}
    let places = [scratch.fresh("mine"), scratch.fresh("yours")];
    let at = |place: &Path| json!({"overrides": {"disks": [{"id": "root", "layer": place}]}});
    // The third child has a layer without a name.
    let named = [("one", at(&places[0])), ("two", at(&places[1])), ("three", json!({}))];
    let children = Child::fork(guest.socket(), scratch.directory(), &named, false);
    let on = |child: &Child| {
        let first = numbers(&child.output(), "sector").last().copied().unwrap_or(70);
        child.reaches("sector", first + 70);
        assert!(!child.output().contains("WRONG"), "{}", child.output());
    };
    children.iter().for_each(on);
    assert!(places.iter().all(|place| place.exists()));
    // A grandchild writes over its parent's layer.
    let fourth = Child::fork(children[0].socket(), scratch.directory(), &[("four", json!({}))], false);
    drop(children);
    on(&fourth[0]);
    // A layer with a name can be opened once all its VMs have ended.
    for kept in &places {
        let words = format!("path={},layer={},id=root", base.display(), kept.display());
        let mut next = Boot::small("disk").device(["--disk".to_owned(), words]).start();
        next.next_number("sector");
        assert!(!next.output().contains("WRONG"), "{}", next.output());
    }
    guest.next_number("sector");
    assert!(!guest.output().contains("WRONG"), "{}", guest.output());
    assert_eq!(fs::read(&base).unwrap(), vec![7; 1 << 20]);
}

#[test]
fn each_child_has_its_own_vsock_and_console() {
    needs!(kvm);
    let scratch = Scratch::new();
    let (socket, console) = (scratch.fresh("vsock"), scratch.fresh("console"));
    let mut guest = Boot::small("vsock")
        .scratch(&scratch)
        .device(["--vsock".into(), format!("cid=5,socket={}", socket.display())])
        .device(["--console".into(), console.display().to_string()])
        .start();
    assert_eq!(guest.next_number("cid"), 5);
    let own = |number: u32| {
        let place = |kind: &str| scratch.path(&format!("{kind}{number}"));
        let different = json!({"console": {"socket": place("c")}, "vsock": {"cid": number}});
        json!({"overrides": different, "vsock_override": {"uds_path": place("v")}})
    };
    let children =
        Child::fork(guest.socket(), scratch.directory(), &[("six", own(6)), ("seven", own(7))], false);
    for (number, child) in (6..).zip(&children) {
        child.reaches("cid", number);
        streams::echoes(&connect(&scratch.path(&format!("v{number}")), 1000), b"to the child");
        assert!(scratch.path(&format!("c{number}")).exists());
    }
    streams::echoes(&connect(&socket, 1000), b"to the parent");
    children.into_iter().for_each(Child::stop);
    streams::echoes(&connect(&socket, 1000), b"to the parent, on and on");
    assert!(!guest.output().contains("WRONG"));
}

fn mapped_ahead(child: &Child) -> Value {
    rest::mapped_ahead(child.socket())
}

#[test]
fn children_have_the_pages_that_the_first_child_with_a_connection_touched() {
    needs!(kvm);
    let scratch = Scratch::new();
    let socket = scratch.fresh("vsock");
    let mut guest = Boot::small("vsock")
        .scratch(&scratch)
        .device(["--vsock".into(), format!("cid=5,socket={}", socket.display())])
        .start();
    guest.next_number("cid");
    let socket_of = |name: &str| scratch.path(&format!("vsock-{name}"));
    let fork = |name: &str, paused| {
        let own = json!({"vsock_override": {"uds_path": socket_of(name)}});
        Child::fork(guest.socket(), scratch.directory(), &[(name, own)], paused).pop().unwrap()
    };
    let [first, _second] = ["one", "two"].map(|name| fork(name, false));
    assert!(mapped_ahead(&first).is_null() && has_memfd(first.pid(), "volt-working-set"));
    streams::echoes(&connect(&socket_of("one"), 1000), b"to the first child");
    let mut later = Vec::new();
    // Nothing tells that the set was kept.
    wait_until("a child has pages from the start", || {
        let name = format!("later-{}", later.len());
        let child = fork(&name, true);
        let is_ahead = !mapped_ahead(&child).is_null();
        later.push((name, child));
        is_ahead
    });
    let (name, child) = later.pop().unwrap();
    let ahead = mapped_ahead(&child);
    assert!(ahead["pages"].as_u64() > Some(0) && ahead["read"] == ahead["pages"], "{ahead}");
    assert!(!has_memfd(child.pid(), "volt-working-set"), "it has one already");
    assert_eq!(child.ask("PATCH", "/vm", r#"{"state": "Resumed"}"#).0, 204);
    streams::echoes(&connect(&socket_of(&name), 1000), b"to a later child");
    // The first set stays.
    streams::echoes(&connect(&socket_of("two"), 1000), b"to the second child");
    let last = fork("last", false);
    assert_eq!(mapped_ahead(&last)["pages"], ahead["pages"]);
    streams::echoes(&connect(&socket_of("last"), 1000), b"to the last child");
    assert!([&child, &last].iter().all(|child| !child.output().contains("WRONG")));
}

#[test]
fn fork_without_own_socket_and_disk_is_refused() {
    needs!(kvm);
    let scratch = Scratch::new();
    let image = scratch.fresh("image");
    fs::File::create(&image).unwrap().set_len(64 * 512).unwrap();
    let mut guest = Boot::small("disk")
        .scratch(&scratch)
        .device(["--disk".to_owned(), format!("id=root,path={}", image.display())])
        .device(["--vsock".to_owned(), format!("cid=5,socket={}", scratch.path("v").display())])
        .start();
    guest.next_number("sector");
    let before = scratch.list();
    let refused = |different: Value, words: &[&str]| {
        let request = Child::request(scratch.directory(), &[("one", different)], false);
        let (status, answer) = guest.ask("POST", "/v1/vm/fork", &request);
        assert!(status == 400 && words.iter().all(|word| answer.contains(word)), "{answer}");
    };
    refused(
        json!({}),
        &["vsock: child 1 cannot have socket", "because the VM itself has it", "overrides.vsock.socket"],
    );
    let socket = json!({"uds_path": scratch.path("w")});
    refused(json!({"vsock_override": socket}), &["disks: child 1", "image", "overrides.disks.path"]);
    assert_eq!((scratch.list(), forked_in(&scratch)), (before, 0));
    guest.next_number("sector");
}

#[test]
fn failed_child_leaves_no_other_child_and_no_file() {
    needs!(kvm);
    let scratch = Scratch::new();
    let (_, mut guest) = with_layer(&scratch);
    guest.next_number("sector");
    fs::write(scratch.path("taken"), "precious").unwrap();
    fs::write(scratch.path("old.out"), "before\n").unwrap();
    let before = scratch.list();
    let layer = |name: &str| json!({"overrides": {"disks": [{"id": "root", "layer": scratch.path(name)}]}});
    let good = ("good", layer("fresh"));
    let old = ("old", json!({}));
    let refused = |bad: (&str, Value), words: &[&str]| {
        let request = Child::request(scratch.directory(), &[good.clone(), bad, old.clone()], false);
        let (status, answer) = guest.ask("POST", "/v1/vm/fork", &request);
        assert!(status == 400 && words.iter().all(|word| answer.contains(word)), "{answer}");
        // The process that opens a child's files ends after the child.
        wait_until("no child runs", || forked_in(&scratch) == 0);
        assert_eq!(scratch.list(), before, "files of other children are left");
    };
    refused(("bad", layer("taken")), &["child ", "bad.sock", "create layer", "taken", "exists"]);
    refused(("bad", layer("no/such")), &["bad.sock", "create layer", "no/such"]);
    refused(("no/bad", json!({})), &["no/bad.sock", "No such file"]);
    refused(("bad", json!({"api_socket": scratch.path("taken")})), &["taken", "not a socket"]);
    refused(
        ("bad", json!({"api_socket": guest.socket()})),
        &["another process listens", &guest.pid().to_string()],
    );
    refused(("bad", json!({"serial": scratch.path("no/out")})), &["bad.sock", "cannot open", "no/out"]);
    refused(("bad", json!({"overrides": {"disks": [{"id": "other"}]}})), &["disks", "\\\"other\\\""]);
    refused(("bad", json!({"overrides": {"disks": [{"id": "root", "layer": "fd:3"}]}})), &["root: fd:3"]);
    refused(("good", json!({})), &["good.sock is given twice"]);
    assert_eq!(fs::read_to_string(scratch.path("taken")).unwrap(), "precious");
    assert_eq!(fs::read_to_string(scratch.path("old.out")).unwrap(), "before\n");
    // The parent goes on and can be forked.
    guest.next_number("sector");
    let children = Child::fork(guest.socket(), scratch.directory(), &[good, old], false);
    children[0].reaches("sector", 1);
    assert!(!guest.output().contains("WRONG"), "{}", guest.output());
}

#[test]
fn fork_needs_a_tap_per_child() {
    needs!(kvm, network);
    let tap = format!("v{}f", std::process::id());
    let mut guest = Boot::small("net").device(["--net", &format!("id=eth0,tap={tap}")]).start();
    guest.wait_for("ready");
    let request = |different| Child::request(guest.scratch().directory(), &[("one", different)], false);
    let (status, answer) = guest.ask("POST", "/v1/vm/fork", &request(json!({})));
    assert!(status == 400 && answer.contains("give network eth0 another tap"), "{answer}");
    let bad = json!({"network_overrides": [{"iface_id": "eth0", "host_dev_name": "much-too-long-a-name"}]});
    let (status, answer) = guest.ask("POST", "/v1/vm/fork", &request(bad));
    assert!(status == 400 && answer.contains("one.sock") && answer.contains("much-too-long"), "{answer}");
    let other = format!("{tap}o");
    let own = json!({"network_overrides": [{"iface_id": "eth0", "host_dev_name": other}]});
    let children = Child::fork(guest.socket(), guest.scratch().directory(), &[("one", own)], false);
    assert!(Path::new(&format!("/sys/class/net/{other}")).exists(), "the child has no tap of its own");
    drop(children);
}

#[test]
fn command_line_forks_a_guest() {
    needs!(kvm);
    let guest = counting();
    let scratch = guest.scratch();
    let path = |name: &str| scratch.path(name).to_str().unwrap().to_owned();
    let fork = |words: &[&str]| {
        let common = ["fork", "--api-socket", guest.socket().to_str().unwrap()];
        Outcome::of(common.iter().chain(words))
    };
    let one = fork(&["--child", &path("one.sock"), "--serial", &path("one.out")]);
    let one = Child::from_line(one.succeeded().stdout.trim_end(), &scratch.path("one.out"));
    goes_on(&one);
    let three = fork(&["--count", "3", "--child-dir", &path("dir")]);
    let three: Vec<_> = (1..)
        .zip(three.succeeded().stdout.lines())
        .map(|(number, line)| Child::from_line(line, &scratch.path(&format!("dir/{number}.out"))))
        .collect();
    assert_eq!(three.len(), 3);
    three.iter().for_each(goes_on);
    let quiet = fork(&["--child", &path("quiet.sock"), "--paused"]);
    let quiet = Child::from_line(quiet.succeeded().stdout.trim_end(), &scratch.path("quiet.out"));
    assert!(quiet.ask("GET", "/v1/vm", "").1.contains(r#""state":"paused""#));
    let taken = fork(&["--child", &path("one.sock")]);
    // On a busy host standard error also has lines of progress.
    assert!(
        taken.status == 1 && taken.stderr.contains("one.sock: cannot listen: another process listens"),
        "{taken:?}"
    );
    fork(&["--count", "3", "--child-dir", &path("no/such")]).refused(&["create directory", "no/such"]);
    fork(&["--count", "2", "--child-dir", &path("other"), "--vsock", "cid=4"])
        .refused(&["vsock", "for one child"]);
    assert!(!scratch.path("other").exists() && !scratch.path("quiet.out").exists());
    assert_eq!(Outcome::of(["fork", "--child", "/a"]).status, 2);
    let gone = path("gone");
    Outcome::of(["fork", "--api-socket", &gone, "--child", "/a"]).refused(&["API socket", "no such file"]);
    Outcome::of(["forked", "--api-socket", &gone, "--id", "x", "--confinement", &confinement()])
        .refused(&["standard input is not a fork's socket", "volt-vmm fork"]);
}

/// The confinement of a parent, as it tells its child.
fn confinement() -> String {
    json!({"is_on": true, "seccomp": true, "filters": null, "strict": null}).to_string()
}

#[test]
fn child_without_its_parent_ends_and_leaves_nothing() {
    needs!(kvm);
    let scratch = Scratch::new();
    let socket = scratch.path("child.sock");
    let shape = json!({"memory_bytes": 64 << 20, "vcpus": 1, "irqchip": "split"});
    let limits = json!({"longest_body": 1, "metadata": 1});
    let order = json!({
        "shape": shape,
        "overrides": {},
        "paused": false,
        "note": {"quiet": false},
        "requires_agent": false,
        "limits": limits,
    });
    let order = order.to_string();
    let order = [&(order.len() as u32).to_le_bytes(), order.as_bytes()].concat();
    let nothing_like_it = [&order[..], &[7; 100]].concat();
    for (said, why) in
        [(&[][..], None), (&order, None), (&nothing_like_it, Some("is not a message of this version"))]
    {
        let (mut here, there) = UnixStream::pair().unwrap();
        let mut command = Command::new("sh");
        // In place of the pipe that tells when the parent detaches its children.
        command.args(["-c", r#"exec "$0" "$@" 3</dev/null"#]).arg(volt_tests::program::binary());
        command.args(["forked", "--api-socket"]).arg(&socket).args(["--id", "f00", "--confinement"]);
        command.arg(confinement());
        let mut child = command.stdin(OwnedFd::from(there)).stdout(Stdio::null()).spawn().unwrap();
        drop(command);
        here.write_all(said).unwrap();
        if !said.is_empty() {
            wait_until("the child has heard", || socket.exists() || child.try_wait().unwrap().is_some());
        }
        here.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // If the child leaves input unread, its end resets the connection after the answer.
        let _ = limited("the child answers", || here.read_to_end(&mut answer));
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.contains("Failed") && answer.contains(why.unwrap_or("")), "{answer}");
        assert_eq!(limited("the child ends", || child.wait()).unwrap().code(), Some(1));
        assert_eq!(scratch.list(), [""; 0], "a socket is left");
    }
}

#[test]
fn forks_in_sequence_leave_nothing_behind() {
    needs!(kvm);
    let mut guest = counting();
    let count = |what: &str| fs::read_dir(format!("/proc/{}/{what}", guest.pid())).unwrap().count();
    let mappings = || fs::read_to_string(format!("/proc/{}/maps", guest.pid())).unwrap().lines().count();
    let one = |number: u32| {
        let name = format!("c{number}");
        let children = fork(&guest, &[&name]);
        goes_on_a_little(&children[0]);
        children.into_iter().for_each(Child::stop);
        fs::remove_file(guest.scratch().path(&format!("{name}.out"))).unwrap();
    };
    (0..5).for_each(one);
    wait_until("the API's connections are over", || count("fd") < 40);
    let (descriptors, before) = (count("fd"), guest.scratch().list());
    let (resident, mapped) = (guest.resident_kib(), mappings());
    (5..45).for_each(one);
    assert_eq!(guest.scratch().list(), before);
    wait_until("no descriptor is left", || count("fd") <= descriptors);
    assert!(mappings() <= mapped + 8, "{} mappings, {mapped} before", mappings());
    assert!(guest.resident_kib() < resident + 4096, "{} KiB, {resident} before", guest.resident_kib());
    wait_until("no child runs", || forked_in(guest.scratch()) == 0);
    guest.next_number("count");
}

fn goes_on_a_little(child: &Child) {
    wait_until("the child says something", || !numbers(&child.output(), "count").is_empty());
}
