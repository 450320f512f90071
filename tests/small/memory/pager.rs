//! VMs in separate processes that share a pager. Each page is read once for all, and VMs survive the pager's
//! death.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use rustix::process::{Pid, Signal};
use volt_tests::child::Child;
use volt_tests::program::binary;
use volt_tests::scratch::list;
use volt_tests::{Guest, Scratch, Snapshot, limited, needs, numbers, wait_until, without_generation};

use crate::snapshot::restoring::goes_on_from;

const MIB: u64 = 8;

/// A packed snapshot, its guest's output until then, and a directory for pagers.
pub(crate) struct Shared {
    scratch: Scratch,
    pub(crate) snapshot: Snapshot,
    pub(crate) before: String,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self::of(MIB)
    }

    pub(crate) fn of(mib: u64) -> Self {
        let mut guest = Guest::boot(&format!("count mib={mib}"));
        while guest.next_number("count") < mib * 4 + 4 {} // by then the guest has written all of its memory
        guest.pause();
        let snapshot = guest.snapshot_as(&["--compress", "lz4", "--chunk-size", "16K"]);
        Self { scratch: Scratch::new(), snapshot, before: guest.settled_output() }
    }

    pub(crate) fn directory(&self) -> PathBuf {
        self.scratch.path("pagers")
    }

    pub(crate) fn restore(&self, options: &[&str]) -> Guest {
        let directory = self.directory();
        let words = ["--pager", "shared", "--pager-dir", directory.to_str().unwrap()];
        self.snapshot.restore_as(&[&words, options].concat())
    }

    /// Lists the pagers of this directory.
    fn pagers(&self) -> Vec<Pid> {
        volt_tests::processes_with(&self.directory())
    }

    /// Waits until one pager is left. A second one, started at the same time, finds the place claimed and
    /// ends.
    pub(crate) fn pager(&self) -> Pid {
        wait_until("there is one pager", || self.pagers().len() == 1);
        self.pagers()[0]
    }

    pub(crate) fn kill_pager(&self) {
        rustix::process::kill_process(self.pager(), Signal::KILL).unwrap();
    }

    pub(crate) fn socket(&self) -> PathBuf {
        let names = list(&self.directory());
        let name = names.iter().find(|name| !name.ends_with(".lock")).expect("a socket");
        self.directory().join(name)
    }
}

/// Returns the inodes of the memfds under a guest's memory.
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

/// Waits until the guest has gone twice through all of its memory.
pub(crate) fn goes_on(guest: &mut Guest) {
    goes_twice_through(guest, MIB);
}

/// Waits until the guest has gone twice through these MiB.
pub(crate) fn goes_twice_through(guest: &mut Guest, mib: u64) {
    let first = guest.next_number("count");
    while guest.next_number("count") < first + 2 * mib * 4 {}
    assert!(!guest.output().contains("WRONG"), "{}", guest.output());
}

fn counts(guest: &mut Guest, times: usize) {
    (0..times).for_each(|_| assert!(guest.next_number("count") > 0));
}

#[test]
fn processes_share_one_pager_and_its_pages() {
    needs!(kvm, page_faults);
    let shared = Shared::new();
    let mut guests: Vec<_> = (0..6).map(|_| shared.restore(&[])).collect();
    guests.iter_mut().for_each(|guest| goes_on_from(&shared.before, guest));
    let pager = shared.pager();
    let bases: Vec<_> = guests.iter().map(base_of).collect();
    assert!(bases[0].len() == 1 && bases.iter().all(|base| *base == bases[0]), "{bases:?}");
    // Other users cannot reach the pager, and it has a session of its own, apart from a VM's terminal.
    assert_eq!(fs::metadata(shared.directory()).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(rustix::process::getsid(Some(pager)).unwrap(), pager);
    for guest in &mut guests {
        guest.resume();
        goes_on(guest);
    }
}

#[test]
fn rest_load_takes_a_pager_object() {
    needs!(kvm, page_faults);
    let shared = Shared::new();
    let load = |guest: &Guest, more: &str| {
        let snapshot = shared.snapshot.directory();
        let request = format!(r#"{{"snapshot_path":{snapshot:?},"resume_vm":true,{more}}}"#);
        guest.ask("PUT", "/snapshot/load", &request)
    };
    let pager = format!(r#""pager":{{"directory":{:?},"patience":30}}"#, shared.directory());
    let mut guest = Guest::waiting();
    let (status, why) = load(&guest, &format!(r#"{pager},"unpack":true"#));
    assert!(status == 400 && why.contains("pager: a pager unpacks memory when it is touched"), "{why}");
    assert_eq!(load(&guest, &pager), (204, String::new()));
    goes_on_from(&shared.before, &mut guest);
    shared.pager();
}

#[test]
fn pager_started_beforehand_is_used_and_ends_after_its_last_vm() {
    needs!(kvm, page_faults);
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
    wait_until("the pager listens", || directory.exists() && list(&directory).len() == 2);
    let mut guest = shared.restore(&[]);
    goes_on_from(&shared.before, &mut guest);
    assert_eq!(shared.pager(), Pid::from_child(&pager));
    // A second pager finds the first and ends.
    let mut again = Command::new(binary());
    again.arg("pager").arg(shared.snapshot.directory()).arg("--pager-dir").arg(&directory);
    assert!(limited("the second pager ends", || again.status()).unwrap().success());
    drop(guest);
    assert!(limited("the pager ends", || pager.wait()).unwrap().success());
    assert!(list(&directory).is_empty(), "{:?}", list(&directory));
}

#[test]
fn killed_pager_is_replaced_and_no_page_is_wrong() {
    needs!(kvm, page_faults);
    let shared = Shared::of(32);
    let mut guests = [shared.restore(&[]), shared.restore(&[])];
    for _ in 0..5 {
        guests.iter_mut().for_each(|guest| counts(guest, 1));
        let killed = shared.pager();
        shared.kill_pager();
        guests.iter_mut().for_each(|guest| counts(guest, 5));
        // A new guest may find the next pager before or after the old ones.
        let mut late = shared.restore(&[]);
        goes_on_from(&shared.before, &mut late);
        wait_until("there is another pager", || shared.pagers().iter().any(|pager| *pager != killed));
    }
    for guest in &mut guests {
        goes_on(guest);
        let full = guest.snapshot();
        goes_on(&mut full.restore());
    }
}

/// The guest's own process has started no pager until then.
#[test]
fn killed_pager_that_another_process_started_is_replaced() {
    needs!(kvm, page_faults);
    let shared = Shared::of(32);
    let first = shared.restore(&[]);
    let mut second = shared.restore(&[]);
    counts(&mut second, 1);
    let killed = shared.pager();
    drop(first);
    shared.kill_pager();
    counts(&mut second, 5);
    wait_until("there is another pager", || shared.pagers().iter().any(|pager| *pager != killed));
    goes_on(&mut second);
}

#[test]
fn guest_without_a_pager_ends_with_an_error() {
    needs!(kvm, page_faults);
    let shared = Shared::of(32);
    // The lab's emulated processor starts a pager slowly.
    let patience = if std::env::var_os("VOLT_LAB").is_some() { "30" } else { "1" };
    let mut guest = shared.restore(&["--pager-patience", patience]);
    guest.next_number("count");
    guest.pause();
    // A file in place of the directory keeps the guest from starting another pager.
    fs::remove_dir_all(shared.directory()).unwrap();
    File::create(shared.directory()).unwrap();
    let pagers = shared.pagers();
    rustix::process::kill_process(pagers[0], Signal::KILL).unwrap();
    let outcome = guest.wait_exit();
    outcome.failed_with(&["its memory cannot be read: the pager has died, and no other could be reached"]);
    assert_eq!(outcome.status, 5, "{outcome:?}");
    assert!(!outcome.stdout.contains("WRONG"), "{outcome:?}");
}

#[test]
fn damaged_chunk_ends_the_touching_guest_and_the_pager_serves_on() {
    needs!(kvm, page_faults);
    let shared = Shared::new();
    let mut first = shared.restore(&[]);
    goes_on(&mut first);
    let path = shared.snapshot.memory_path();
    let file = File::options().write(true).open(&path).unwrap();
    let end = fs::metadata(&path).unwrap().len() - 20 * 4096;
    // The changed file gets another pager, which has read nothing yet.
    file.write_all_at(&vec![0x5a; end as usize], 0).unwrap();
    let mut damaged = shared.restore(&[]);
    let outcome = damaged.wait_exit();
    outcome.failed_with(&["its memory cannot be read", path.to_str().unwrap(), "is damaged in chunk"]);
    assert_eq!((outcome.status, outcome.stdout.contains("WRONG")), (5, false), "{outcome:?}");
    assert_eq!(shared.pagers().len(), 2);
    goes_on(&mut first);
}

/// Counts the sockets of this path: the listening one and its connections, accepted or not (proc(5)).
fn connections_to(socket: &Path) -> usize {
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    sockets.lines().filter(|line| line.ends_with(socket.to_str().unwrap())).count()
}

#[test]
fn stopped_pager_delays_a_restore_only_by_the_patience() {
    needs!(kvm, page_faults);
    let shared = Shared::new();
    let mut first = shared.restore(&[]);
    goes_on(&mut first);
    let pager = shared.pager();
    rustix::process::kill_process(pager, Signal::STOP).unwrap();
    let directory = shared.directory();
    let words = ["--pager", "shared", "--pager-dir", directory.to_str().unwrap(), "--pager-patience"];
    let refused = shared.snapshot.try_restore_as(&[&words[..], &["1"]].concat());
    refused.refused(&["cannot reach the pager at", "it has not answered for 1 s"]);
    // A restore that waits for the pager can be ended.
    let socket = shared.socket();
    let connections = connections_to(&socket);
    let mut late = shared.restore(&["--pager-patience", "3600"]);
    wait_until("the restore is connected to the pager", || connections_to(&socket) > connections);
    late.signal(Signal::TERM);
    let outcome = late.wait_exit();
    assert_eq!(outcome.status, 143, "{outcome:?}");
    rustix::process::kill_process(pager, Signal::CONT).unwrap();
    goes_on(&mut first);
}

#[test]
fn pager_without_descriptors_refuses_new_vms_and_serves_the_others() {
    needs!(kvm, page_faults);
    let shared = Shared::new();
    let mut first = shared.restore(&[]);
    first.next_number("count");
    let pager = shared.pager();
    let first_unused = || {
        let names = list(&PathBuf::from(format!("/proc/{}/fd", pager.as_raw_nonzero())));
        (0_u64..).find(|number| !names.contains(&number.to_string())).unwrap()
    };
    let resource = rustix::process::Resource::Nofile;
    // A guest of this process started the pager, so it has the limits of this process.
    let maximum = rustix::process::getrlimit(resource).maximum;
    let limit_to = |count| {
        let limit = rustix::process::Rlimit { current: Some(count), maximum };
        rustix::process::prlimit(Some(pager), resource, limit).unwrap();
    };
    limit_to(first_unused());
    let directory = shared.directory();
    let words = ["--pager", "shared", "--pager-dir", directory.to_str().unwrap(), "--pager-patience", "30"];
    for _ in 0..3 {
        shared.snapshot.try_restore_as(&words).refused(&["no descriptor left", "RLIMIT_NOFILE"]);
    }
    // The pager has no descriptor for the list of fetched chunks, and serves on.
    let (status, held) = first.ask("GET", "/v1/vm/memory", "");
    assert!(status == 200 && held.contains(r#""chunks":null"#), "{held}");
    goes_on(&mut first);
    // Connections that the pager can neither serve nor refuse cost no processor time. Polling them in a loop
    // would use a whole processor.
    limit_to(3);
    let _waiting: Vec<_> = (0..8).map(|_| connect(&shared.socket())).collect();
    let before = processor_ticks(pager);
    std::thread::sleep(Duration::from_secs(2));
    let used = processor_ticks(pager) - before;
    assert!(used < 20, "a pager without descriptors used {used} ticks of 10 ms");
    limit_to(64);
    let mut second = shared.restore(&[]);
    goes_on_from(&shared.before, &mut second);
    // The pager can refuse again, too.
    limit_to(first_unused());
    shared.snapshot.try_restore_as(&words).refused(&["no descriptor left", "RLIMIT_NOFILE"]);
}

pub(crate) fn connect(place: &Path) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(place).unwrap()).unwrap();
    socket
}

/// Returns the processor time of a process in ticks of 10 ms (proc(5): utime and stime).
fn processor_ticks(process: Pid) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap();
    let fields = stat.rsplit(") ").next().unwrap().split(' ').skip(11).take(2);
    fields.map(|field| field.parse::<u64>().unwrap()).sum()
}

/// Returns a guest that waits for memory, and its stopped pager.
fn waits_for_memory(shared: &Shared) -> (Guest, Pid) {
    let guest = shared.restore(&["--paused", "--pager-patience", "3600"]);
    assert!(guest.ask("GET", "/", "").1.contains(r#""state":"Paused""#)); // the guest has its pager
    let pager = shared.pager();
    rustix::process::kill_process(pager, Signal::STOP).unwrap();
    guest.resume();
    wait_until("the guest waits for memory", || guest.waits_for_memory());
    (guest, pager)
}

#[test]
fn guest_of_a_stopped_pager_can_be_ended() {
    needs!(kvm, page_faults);
    let shared = Shared::new();
    let (mut guest, pager) = waits_for_memory(&shared);
    guest.signal(Signal::TERM);
    assert_eq!(guest.wait_exit().status, 143);
    rustix::process::kill_process(pager, Signal::KILL).unwrap();
}

#[test]
fn pause_does_not_wait_endlessly_for_memory() {
    needs!(kvm, page_faults);
    let shared = Shared::new();
    let (mut guest, pager) = waits_for_memory(&shared);
    let (status, why) = guest.ask("PATCH", "/vm", r#"{"state":"Paused"}"#);
    if status == 204 {
        // Since Linux 6.2 (FOLL_INTERRUPTIBLE) a signal interrupts a vCPU that waits for memory, if the
        // processor found the page missing. Then the guest is paused at once.
        guest.signal(Signal::TERM);
        assert_eq!(guest.wait_exit().status, 143);
        rustix::process::kill_process(pager, Signal::KILL).unwrap();
        return;
    }
    assert!(status == 400 && why.contains("has ended"), "{status} {why}");
    let outcome = guest.wait_exit();
    outcome.failed_with(&["its memory cannot be read: a thread waited 10 s for a page"]);
    assert_eq!(outcome.status, 5, "{outcome:?}");
    rustix::process::kill_process(pager, Signal::KILL).unwrap();
}

#[test]
fn snapshot_of_a_pager_guest_equals_that_of_an_unpacked_guest() {
    needs!(kvm, page_faults);
    let shared = Shared::new();
    let of = |guest: &Guest| without_generation(fs::read(guest.snapshot().memory_path()).unwrap());
    let expected = of(&shared.snapshot.restore_as(&["--paused", "--unpack"]));
    let guest = shared.restore(&["--paused"]);
    assert!(of(&guest) == expected);
    let other = shared.restore(&["--paused"]);
    shared.kill_pager();
    assert!(of(&other) == expected, "after the death of its pager");
    let diff = guest.snapshot_as(&["--diff"]);
    assert!(without_generation(fs::read(diff.merged().memory_path()).unwrap()) == expected);
}

#[test]
fn fork_shares_the_base_of_a_guest_on_the_shared_pager() {
    needs!(kvm, page_faults);
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
    // A guest that is restored now shares the base, too.
    let mut late = shared.restore(&[]);
    goes_on(&mut late);
    assert_eq!(base_of(&late), base_of(&guest));
    shared.kill_pager();
    goes_on(&mut guest);
}

#[test]
fn pager_directory_open_to_others_is_refused() {
    needs!(kvm, page_faults);
    let shared = Shared::of(2);
    fs::create_dir(shared.directory()).unwrap();
    fs::set_permissions(shared.directory(), fs::Permissions::from_mode(0o755)).unwrap();
    let directory = shared.directory();
    let options = ["--pager", "shared", "--pager-dir", directory.to_str().unwrap()];
    shared
        .snapshot
        .try_restore_as(&options)
        .refused(&[directory.to_str().unwrap(), "that no other user can enter"]);
    let long = format!("/tmp/{}", "x".repeat(120));
    let outcome =
        shared.snapshot.try_restore_as(&["--pager", "shared", "--pager-dir", &long, "--pager-patience", "0"]);
    outcome.refused(&["pager", &long]);
    let _ = fs::remove_dir(long);
}
