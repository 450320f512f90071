//! VMs in processes of their own that share a pager: what it has read is there for all, it may die, and it can be fooled by nobody.

use std::fs::{self, File};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType,
};
use rustix::process::{Pid, Signal};
use volt_tests::boot::binary;
use volt_tests::child::Child;
use volt_tests::scratch::list;
use volt_tests::{Guest, Scratch, Snapshot, limited, needs, numbers, wait_until};

use crate::restoring::goes_on_from;

const MIB: u64 = 8;

/// A packed snapshot, all that its guest had said, and a directory for pagers.
pub(crate) struct Shared {
    scratch: Scratch,
    snapshot: Snapshot,
    pub(crate) before: String,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self::of(MIB)
    }

    fn of(mib: u64) -> Self {
        let mut guest = Guest::boot(&format!("count mib={mib}"));
        while guest.next_number("count") < mib * 4 + 4 {} // all of its memory has been written by then
        guest.pause();
        let snapshot = guest.snapshot_as(&["--compress", "lz4", "--chunk-size", "16K"]);
        Self { scratch: Scratch::new(), snapshot, before: guest.settled_output() }
    }

    fn directory(&self) -> PathBuf {
        self.scratch.path("pagers")
    }

    pub(crate) fn restore(&self, options: &[&str]) -> Guest {
        let directory = self.directory();
        let words = ["--pager", "shared", "--pager-dir", directory.to_str().unwrap()];
        self.snapshot.restore_as(&[&words, options].concat())
    }

    /// The processes that are pagers here.
    fn pagers(&self) -> Vec<Pid> {
        volt_tests::processes_with(&self.directory())
    }

    /// The one that there is: another, started at the same time, finds the place claimed and goes.
    fn pager(&self) -> Pid {
        wait_until("there is one pager", || self.pagers().len() == 1);
        self.pagers()[0]
    }

    pub(crate) fn kill_pager(&self) {
        rustix::process::kill_process(self.pager(), Signal::KILL).unwrap();
    }

    fn socket(&self) -> PathBuf {
        let names = list(&self.directory());
        let name = names.iter().find(|name| !name.ends_with(".lock")).expect("a socket");
        self.directory().join(name)
    }
}

/// The memfd under a guest's memory, by its number.
pub(crate) fn base_of(guest: &Guest) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", guest.pid())).unwrap();
    let mut bases: Vec<String> = maps
        .lines()
        .filter(|line| line.contains("memfd:volt-ram"))
        .map(|line| line.split_whitespace().nth(4).unwrap().to_owned())
        .collect();
    bases.dedup();
    bases
}

/// Through all of its memory, twice.
fn goes_on(guest: &mut Guest) {
    let first = guest.next_number("count");
    while guest.next_number("count") < first + 2 * MIB * 4 {}
    assert!(!guest.output().contains("WRONG"), "{}", guest.output());
}

fn counts(guest: &mut Guest, times: usize) {
    (0..times).for_each(|_| assert!(guest.next_number("count") > 0));
}

#[test]
fn processes_share_one_pager_and_what_it_has_read() {
    needs!(kvm);
    let shared = Shared::new();
    let mut guests: Vec<_> = (0..6).map(|_| shared.restore(&[])).collect();
    guests.iter_mut().for_each(|guest| goes_on_from(&shared.before, guest));
    let pager = shared.pager();
    let bases: Vec<_> = guests.iter().map(base_of).collect();
    assert!(bases[0].len() == 1 && bases.iter().all(|base| *base == bases[0]), "{bases:?}");
    // Nobody but its user can have to do with it, and it is no child of a VM's terminal.
    assert_eq!(fs::metadata(shared.directory()).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(rustix::process::getsid(Some(pager)).unwrap(), pager);
    for guest in &mut guests {
        guest.resume();
        goes_on(guest);
    }
}

#[test]
fn over_rest_it_is_an_object() {
    needs!(kvm);
    let shared = Shared::new();
    let load = |guest: &Guest, more: &str| {
        let snapshot = shared.snapshot.directory();
        let request = format!(r#"{{"snapshot_path":{snapshot:?},"resume_vm":true,{more}}}"#);
        guest.ask("PUT", "/snapshot/load", &request)
    };
    let pager = format!(r#""pager":{{"directory":{:?},"patience":30}}"#, shared.directory());
    let mut guest = Guest::waiting();
    let (status, why) = load(&guest, &format!(r#"{pager},"unpack":true"#));
    assert!(status == 400 && why.contains("pager: unpacks memory as it is touched"), "{why}");
    assert_eq!(load(&guest, &pager), (204, String::new()));
    goes_on_from(&shared.before, &mut guest);
    shared.pager();
}

#[test]
fn one_that_was_started_before_is_used_and_goes_after_its_last_vm() {
    needs!(kvm);
    let shared = Shared::new();
    let directory = shared.directory();
    let mut command = Command::new(binary());
    command
        .arg("pager")
        .arg(shared.snapshot.directory())
        .arg("--pager-dir")
        .arg(&directory)
        .args(["--linger", "1"]);
    let mut pager = command.stdin(Stdio::null()).spawn().unwrap();
    wait_until("it listens", || directory.exists() && list(&directory).len() == 2);
    let mut guest = shared.restore(&[]);
    goes_on_from(&shared.before, &mut guest);
    assert_eq!(shared.pager(), Pid::from_child(&pager));
    // Another finds that there is one, and goes.
    let again = Command::new(binary())
        .arg("pager")
        .arg(shared.snapshot.directory())
        .arg("--pager-dir")
        .arg(&directory)
        .status()
        .unwrap();
    assert!(again.success());
    drop(guest);
    assert!(limited("the pager ends", || pager.wait()).unwrap().success());
    assert!(list(&directory).is_empty(), "{:?}", list(&directory));
}

#[test]
fn a_pager_that_is_killed_is_replaced_and_no_page_is_wrong() {
    needs!(kvm);
    let shared = Shared::of(32);
    let mut guests = [shared.restore(&[]), shared.restore(&[])];
    for _ in 0..5 {
        guests.iter_mut().for_each(|guest| counts(guest, 1));
        let killed = shared.pager();
        shared.kill_pager();
        guests.iter_mut().for_each(|guest| counts(guest, 5));
        // One that comes meanwhile, before or after those that were there.
        let mut late = shared.restore(&[]);
        goes_on_from(&shared.before, &mut late);
        wait_until("there is another", || shared.pagers().iter().any(|pager| *pager != killed));
    }
    for guest in &mut guests {
        goes_on(guest);
        let full = guest.snapshot();
        goes_on(&mut full.restore());
    }
}

#[test]
fn without_a_pager_the_guest_ends_and_says_so() {
    needs!(kvm);
    let shared = Shared::of(32);
    // An emulated processor takes its time to start one.
    let patience = if std::env::var_os("VOLT_LAB").is_some() { "30" } else { "1" };
    let mut guest = shared.restore(&["--pager-patience", patience]);
    guest.next_number("count");
    guest.pause();
    // Where it would be, nothing can be any more.
    fs::remove_dir_all(shared.directory()).unwrap();
    File::create(shared.directory()).unwrap();
    let pagers = shared.pagers();
    rustix::process::kill_process(pagers[0], Signal::KILL).unwrap();
    let outcome = guest.wait_exit();
    outcome.complained(&["its memory cannot be had: the pager has died, and there is no other"]);
    assert_eq!(outcome.status, 5, "{outcome:?}");
    assert!(!outcome.stdout.contains("WRONG"), "{outcome:?}");
}

#[test]
fn a_damaged_chunk_ends_the_guest_that_touches_it_and_the_pager_serves_on() {
    needs!(kvm);
    let shared = Shared::new();
    let mut first = shared.restore(&[]);
    goes_on(&mut first);
    let path = shared.snapshot.memory_path();
    let file = File::options().write(true).open(&path).unwrap();
    let end = fs::metadata(&path).unwrap().len() - 20 * 4096;
    // Another file for the file system, for it was changed: another pager, with nothing read yet.
    file.write_all_at(&vec![0x5a; end as usize], 0).unwrap();
    let mut damaged = shared.restore(&[]);
    let outcome = damaged.wait_exit();
    outcome.complained(&["its memory cannot be had", path.to_str().unwrap(), "is damaged in chunk"]);
    assert_eq!((outcome.status, outcome.stdout.contains("WRONG")), (5, false), "{outcome:?}");
    assert_eq!(shared.pagers().len(), 2);
    goes_on(&mut first);
}

/// The sockets of this path: the one that listens and those that are connected to it, taken or not (proc(5)).
fn connections_to(socket: &Path) -> usize {
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    sockets.lines().filter(|line| line.ends_with(socket.to_str().unwrap())).count()
}

#[test]
fn a_pager_that_is_stopped_keeps_no_restore_longer_than_the_patience() {
    needs!(kvm);
    let shared = Shared::new();
    let mut first = shared.restore(&[]);
    goes_on(&mut first);
    let pager = shared.pager();
    rustix::process::kill_process(pager, Signal::STOP).unwrap();
    let directory = shared.directory();
    let words = ["--pager", "shared", "--pager-dir", directory.to_str().unwrap(), "--pager-patience"];
    let refused = shared.snapshot.try_restore_as(&[&words[..], &["1"]].concat());
    refused.refused(&["cannot reach the pager at", "it has not answered for 1 s"]);
    // Nor does it keep one from its end.
    let socket = shared.socket();
    let connections = connections_to(&socket);
    let mut late = shared.restore(&["--pager-patience", "3600"]);
    wait_until("it is connected to the pager", || connections_to(&socket) > connections);
    late.signal(Signal::TERM);
    let outcome = late.wait_exit();
    assert_eq!(outcome.status, 143, "{outcome:?}");
    rustix::process::kill_process(pager, Signal::CONT).unwrap();
    goes_on(&mut first);
}

#[test]
fn a_pager_without_descriptors_refuses_vms_and_serves_those_it_has() {
    needs!(kvm);
    let shared = Shared::new();
    let mut first = shared.restore(&[]);
    first.next_number("count");
    let pager = shared.pager();
    let names = list(&PathBuf::from(format!("/proc/{}/fd", pager.as_raw_nonzero())));
    let open = (0_u64..).find(|number| !names.contains(&number.to_string())).unwrap();
    let resource = rustix::process::Resource::Nofile;
    // Started by a guest, it has the limits that this process has.
    let maximum = rustix::process::getrlimit(resource).maximum;
    let limit_to = |count| {
        let limit = rustix::process::Rlimit { current: Some(count), maximum };
        rustix::process::prlimit(Some(pager), resource, limit).unwrap();
    };
    limit_to(open);
    let directory = shared.directory();
    let words = ["--pager", "shared", "--pager-dir", directory.to_str().unwrap(), "--pager-patience", "30"];
    for _ in 0..3 {
        shared.snapshot.try_restore_as(&words).refused(&["no descriptor left", "RLIMIT_NOFILE"]);
    }
    // It has none for the list of what is fetched, and serves on.
    let (status, held) = first.ask("GET", "/v1/vm/memory", "");
    assert!(status == 200 && held.contains(r#""chunks":null"#), "{held}");
    goes_on(&mut first);
    // Those that it cannot serve cost it nothing while they wait. A loop over them would use a whole
    // processor.
    let _waiting: Vec<_> = (0..8).map(|_| connect(&shared.socket())).collect();
    let before = processor_ticks(pager);
    std::thread::sleep(Duration::from_secs(2));
    let used = processor_ticks(pager) - before;
    assert!(used < 20, "a pager without descriptors used {used} ticks of 10 ms");
    limit_to(64);
    goes_on_from(&shared.before, &mut shared.restore(&[]));
}

fn connect(place: &Path) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(place).unwrap()).unwrap();
    socket
}

/// Processor time that a process has used, in ticks of 10 ms (proc(5): utime and stime).
fn processor_ticks(process: Pid) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap();
    let fields = stat.rsplit(") ").next().unwrap().split(' ').skip(11).take(2);
    fields.map(|field| field.parse::<u64>().unwrap()).sum()
}

/// A guest whose pager stands still.
fn waits_for_memory(shared: &Shared) -> (Guest, Pid) {
    let mut guest = shared.restore(&["--pager-patience", "3600"]);
    guest.next_number("count");
    let pager = shared.pager();
    rustix::process::kill_process(pager, Signal::STOP).unwrap();
    assert!(!guest.settled_output().contains("WRONG"));
    (guest, pager)
}

#[test]
fn a_pager_that_stands_still_does_not_keep_a_guest_from_its_end() {
    needs!(kvm);
    let shared = Shared::of(32);
    let (mut guest, pager) = waits_for_memory(&shared);
    guest.signal(Signal::TERM);
    assert_eq!(guest.wait_exit().status, 143);
    rustix::process::kill_process(pager, Signal::KILL).unwrap();
}

#[test]
fn a_pause_does_not_wait_for_memory_for_ever() {
    needs!(kvm);
    let shared = Shared::of(32);
    let (mut guest, pager) = waits_for_memory(&shared);
    let (status, why) = guest.ask("PATCH", "/vm", r#"{"state":"Paused"}"#);
    assert!(status == 400 && why.contains("has ended"), "{status} {why}");
    let outcome = guest.wait_exit();
    outcome.complained(&["its memory cannot be had: waited for a page"]);
    assert_eq!(outcome.status, 5, "{outcome:?}");
    rustix::process::kill_process(pager, Signal::KILL).unwrap();
}

#[test]
fn a_snapshot_of_one_is_that_of_a_guest_that_had_all_of_its_memory() {
    needs!(kvm);
    let shared = Shared::new();
    let of = |guest: &Guest| fs::read(guest.snapshot().memory_path()).unwrap();
    let expected = of(&shared.snapshot.restore_as(&["--paused", "--unpack"]));
    let guest = shared.restore(&["--paused"]);
    assert!(of(&guest) == expected);
    let other = shared.restore(&["--paused"]);
    shared.kill_pager();
    assert!(of(&other) == expected, "after its pager has died");
    let diff = guest.snapshot_as(&["--diff"]);
    assert!(fs::read(diff.merged().memory_path()).unwrap() == expected);
}

#[test]
fn fork_shares_the_base_of_a_guest_on_the_shared_pager() {
    needs!(kvm);
    let shared = Shared::new();
    let mut guest = shared.restore(&[]);
    goes_on(&mut guest);
    let names = ["a", "b"].map(|name| (name, serde_json::json!({})));
    let children = Child::fork(guest.socket(), guest.scratch().directory(), &names, false);
    for child in &children {
        let first = numbers(&child.output(), "count").last().copied().unwrap_or(0);
        child.reaches("count", first + 2 * MIB * 4);
        assert!(!child.output().contains("WRONG"), "{}", child.output());
        let maps = fs::read_to_string(format!("/proc/{}/maps", child.pid())).unwrap();
        let inode = &base_of(&guest)[0];
        assert!(maps.lines().any(|line| line.split_whitespace().nth(4) == Some(inode)), "{maps}");
    }
    goes_on(&mut guest);
    // So does one that is restored from now on.
    let mut late = shared.restore(&[]);
    goes_on(&mut late);
    assert_eq!(base_of(&late), base_of(&guest));
    shared.kill_pager();
    goes_on(&mut guest);
}

#[test]
fn a_place_that_others_can_enter_is_refused() {
    needs!(kvm);
    let shared = Shared::of(2);
    fs::create_dir(shared.directory()).unwrap();
    fs::set_permissions(shared.directory(), fs::Permissions::from_mode(0o755)).unwrap();
    let directory = shared.directory();
    let options = ["--pager", "shared", "--pager-dir", directory.to_str().unwrap()];
    shared
        .snapshot
        .try_restore_as(&options)
        .refused(&[directory.to_str().unwrap(), "that nobody else can enter"]);
    let long = format!("/tmp/{}", "x".repeat(120));
    let outcome =
        shared.snapshot.try_restore_as(&["--pager", "shared", "--pager-dir", &long, "--pager-patience", "0"]);
    outcome.refused(&["pager", &long]);
    let _ = fs::remove_dir(long);
}

/// Says something to a pager, and hears what it says.
fn say(socket: &OwnedFd, text: &str, fd: Option<BorrowedFd<'_>>) -> String {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut room);
    let fds: Vec<_> = fd.into_iter().collect();
    if !fds.is_empty() {
        beside.push(SendAncillaryMessage::ScmRights(&fds));
    }
    if rustix::net::sendmsg(socket, &[IoSlice::new(text.as_bytes())], &mut beside, SendFlags::NOSIGNAL)
        .is_err()
    {
        return "gone".to_owned();
    }
    let mut answer = [0; 4096];
    match rustix::net::recv(socket, &mut answer, RecvFlags::empty()) {
        Ok((_, len)) if len > 0 => String::from_utf8_lossy(&answer[..len]).into_owned(),
        _ => "gone".to_owned(),
    }
}

/// Does to a base what any client can: reads every page, and in turn writes to a page, punches a hole through
/// it, and has one filled with zeros.
fn poison(base: &File, len: u64) {
    let mut page = [0; 4096];
    let file = File::options().read(true).write(true).open(format!("/proc/self/fd/{}", base.as_raw_fd()));
    let file = file.expect("a base with holes can be opened for writing");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for (number, at) in (0..len).step_by(4096).enumerate() {
        let _ = base.read_at(&mut page, at).unwrap();
        match number % 3 {
            0 => file.write_all_at(&[0xa5; 4096], at).unwrap(),
            1 => fallocate(&file, punch, at, 4096).unwrap(),
            _ => fallocate(&file, FallocateFlags::empty(), at, 4096).unwrap(),
        }
    }
}

/// Asks for a base, and has the descriptor beside the answer.
fn ask_for_base(socket: &OwnedFd, text: &str, fd: Option<BorrowedFd<'_>>) -> File {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut room);
    let fds: Vec<_> = fd.into_iter().collect();
    if !fds.is_empty() {
        beside.push(SendAncillaryMessage::ScmRights(&fds));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(text.as_bytes())], &mut beside, SendFlags::empty()).unwrap();
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut room);
    let mut text = [0; 4096];
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut text)], &mut beside, RecvFlags::empty()).unwrap();
    let mut fds = beside.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    fds.next().expect("a base").into()
}

#[test]
fn hostile_pager_client_cannot_affect_other_groups() {
    needs!(kvm);
    let shared = Shared::new();
    let hostile = shared.restore(&["--pager-group", "hostile", "--paused"]);
    assert!(hostile.ask("GET", "/", "").1.contains(r#""state":"Paused""#));
    let group = shared.directory().join("group-hostile");
    let names = list(&group);
    let name = names.iter().find(|name| !name.ends_with(".lock")).expect("a socket");
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(group.join(name)).unwrap()).unwrap();
    let len = 64_u64 << 20;
    poison(&ask_for_base(&socket, &format!(r#"{{"Base":{{"version":3,"memory_len":{len}}}}}"#), None), len);
    for options in [&[][..], &["--pager-group", "other"]] {
        let mut guest = shared.restore(options);
        goes_on(&mut guest);
        assert!(base_of(&guest) != base_of(&hostile));
    }
    let directory = shared.directory();
    let words = ["--pager", "shared", "--pager-dir", directory.to_str().unwrap(), "--pager-group", "../x"];
    shared.snapshot.try_restore_as(&words).refused(&["pager_group", "letters"]);
}

#[test]
fn memory_that_a_client_brings_is_given_to_no_other() {
    needs!(kvm);
    let shared = Shared::new();
    let directory = shared.directory();
    let mut command = Command::new(binary());
    command.arg("pager").arg(shared.snapshot.directory()).arg("--pager-dir").arg(&directory);
    let mut pager = command.stdin(Stdio::null()).spawn().unwrap();
    wait_until("it listens", || directory.exists() && list(&directory).len() == 2);
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(shared.socket()).unwrap()).unwrap();
    let len = 64_u64 << 20;
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let brought = File::from(rustix::fs::memfd_create("volt-ram", flags).unwrap());
    brought.set_len(len).unwrap();
    let ask = format!(r#"{{"Base":{{"version":3,"memory_len":{len}}}}}"#);
    poison(&ask_for_base(&socket, &ask, Some(brought.as_fd())), len);
    goes_on(&mut shared.restore(&[]));
    let _ = pager.kill();
    limited("the killed pager is gone", || pager.wait()).unwrap();
}

#[test]
fn nobody_s_lies_harm_another() {
    needs!(kvm);
    let shared = Shared::new();
    let mut guest = shared.restore(&["--paused"]);
    assert!(guest.ask("GET", "/", "").1.contains(r#""state":"Paused""#)); // it has its pager
    let address = SocketAddrUnix::new(shared.socket()).unwrap();
    let connect = || {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        socket
    };
    let len = 64_u64 << 20;
    let base = format!(r#"{{"Base":{{"version":3,"memory_len":{len}}}}}"#);
    let file = File::open("/proc/self/exe").unwrap();
    for (asks, answer) in [
        (vec!["rubbish".to_owned()], r#"{"Refused":"expected value"#),
        (vec!["x".repeat(4000)], r#"{"Refused":"expected value"#),
        (vec![r#"{"Base":{"version":1,"memory_len":1}}"#.to_owned()], "version 3"),
        (vec![r#"{"Base":{"version":3,"memory_len":4096}}"#.to_owned()], "and not 4096"),
        (vec![format!(r#"{{"Serve":{{"start":4096,"len":{len}}}}}"#)], "no base was asked for"),
        (vec![r#""Complete""#.to_owned()], "gone"),
        (vec![r#""Prefetch""#.to_owned()], "gone"),
        (vec![r#""Fetched""#.to_owned()], "gone"),
        (vec![base.clone(), r#""Fetched""#.to_owned()], r#""touched":0,"prefetch":null"#),
        (vec![base.clone(), r#""Prefetch""#.to_owned()], "gone"),
        (vec![base.clone(), format!(r#"{{"Serve":{{"start":4097,"len":{len}}}}}"#)], "cannot be memory"),
        (vec![base.clone(), r#"{"Serve":{"start":4096,"len":4096}}"#.to_owned()], "cannot be memory"),
        (
            vec![base.clone(), format!(r#"{{"Serve":{{"start":{},"len":{len}}}}}"#, u64::MAX - 4095)],
            "cannot be memory",
        ),
        (vec![base.clone(), format!(r#"{{"Serve":{{"start":4096,"len":{len}}}}}"#)], "no userfaultfd"),
    ] {
        let socket = connect();
        let (last, first) = asks.split_last().unwrap();
        first.iter().for_each(|ask| assert_eq!(say(&socket, ask, None), r#""Done""#));
        let fd = last.contains("Serve").then(|| file.as_fd());
        let said = say(&socket, last, fd);
        assert!(said.contains(answer), "{asks:?}: {said}");
    }
    // What it would have fetched ahead is no list, or not of pages that there are, each once.
    let list = |runs: &[[u32; 2]]| {
        let list = File::from(rustix::fs::memfd_create("list", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        let bytes: Vec<u8> = runs.iter().flatten().flat_map(|number| number.to_le_bytes()).collect();
        list.write_all_at(&bytes, 0).unwrap();
        list
    };
    let pages = (len >> 12) as u32;
    let cut = list(&[[0, 1]]);
    cut.set_len(7).unwrap();
    for (list, problem) in [
        (file.try_clone().unwrap(), "cannot be one"),
        (File::open("/dev/zero").unwrap(), "cannot be one"),
        (cut, "pages that there are not"),
        (list(&[[0, 1], [pages - 1, 2]]), "pages that there are not"),
        (list(&[[u32::MAX, u32::MAX]]), "pages that there are not"),
        (list(&[[3, 0]]), "pages that there are not"),
        (list(&[[3, 2], [4, 1]]), "names one twice"),
    ] {
        let socket = connect();
        assert_eq!(say(&socket, &base, None), r#""Done""#);
        let said = say(&socket, r#""Prefetch""#, Some(list.as_fd()));
        assert!(said.contains("NotPrefetched") && said.contains(problem), "{said}");
    }
    // What it brings as its memory is none.
    let said = say(&connect(), &base, Some(file.as_fd()));
    assert!(said.contains("is no memory of a VM"), "{said}");
    guest.resume();
    goes_on(&mut guest);
    assert!(!numbers(&guest.output(), "count").is_empty());
}
