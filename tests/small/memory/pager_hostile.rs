//! Hostile clients of a shared pager: they send bad requests and spoil the memory that they share.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg,
};
use volt_tests::program::binary;
use volt_tests::scratch::list;
use volt_tests::{limited, needs, numbers, wait_until};

use crate::memory::pager::{Shared, base_of, connect, goes_on};

/// Sends a request to a pager. Returns the answer, or "gone" if the pager hangs up.
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
    match limited("the pager answers or hangs up", || recv(socket, &mut answer, RecvFlags::empty())) {
        Ok((_, len)) if len > 0 => String::from_utf8_lossy(&answer[..len]).into_owned(),
        _ => "gone".to_owned(),
    }
}

/// A way to spoil a base with holes, open to any client.
#[derive(Clone, Copy, Debug)]
enum Poison {
    Punch,
    Write,
    FillWithZeros,
}

const POISONS: [Poison; 3] = [Poison::Punch, Poison::Write, Poison::FillWithZeros];

impl Poison {
    /// Reads each page of the base, then spoils it.
    fn spoil(self, base: &File, len: u64) {
        let mut page = [0; 4096];
        let file = File::options().read(true).write(true).open(format!("/proc/self/fd/{}", base.as_raw_fd()));
        let file = file.expect("a base with holes can be opened for writing");
        for at in (0..len).step_by(4096) {
            let _ = base.read_at(&mut page, at).unwrap();
            match self {
                Self::Punch => {
                    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    fallocate(&file, punch, at, 4096).unwrap();
                }
                Self::Write => file.write_all_at(&[0xa5; 4096], at).unwrap(),
                Self::FillWithZeros => fallocate(&file, FallocateFlags::empty(), at, 4096).unwrap(),
            }
        }
    }
}

/// Asks for a base. Returns the descriptor that comes with the answer.
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
    let mut text = [IoSliceMut::new(&mut text)];
    limited("the pager sends a base", || recvmsg(socket, &mut text, &mut beside, RecvFlags::empty()))
        .unwrap();
    let mut fds = beside.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    fds.next().expect("a base").into()
}

#[test]
fn hostile_pager_client_cannot_affect_other_groups() {
    needs!(kvm, page_faults);
    let shared = Shared::new();
    let hostile = shared.restore(&["--pager-group", "hostile", "--paused"]);
    assert!(hostile.ask("GET", "/", "").1.contains(r#""state":"Paused""#));
    let group = shared.directory().join("group-hostile");
    let names = list(&group);
    let name = names.iter().find(|name| !name.ends_with(".lock")).expect("a socket");
    let socket = connect(&group.join(name));
    let len = 64_u64 << 20;
    let base = ask_for_base(&socket, &format!(r#"{{"Base":{{"version":4,"memory_len":{len}}}}}"#), None);
    let groups = [&[][..], &["--pager-group", "other"]];
    let mut early = groups.map(|options| shared.restore(options));
    for poison in POISONS {
        poison.spoil(&base, len);
        early.iter_mut().for_each(goes_on);
        for options in groups {
            let mut guest = shared.restore(options);
            goes_on(&mut guest);
            assert!(base_of(&guest) != base_of(&hostile));
        }
    }
    let directory = shared.directory();
    let words = ["--pager", "shared", "--pager-dir", directory.to_str().unwrap(), "--pager-group", "../x"];
    shared.snapshot.try_restore_as(&words).refused(&["pager_group", "letters"]);
}

#[test]
fn memory_of_a_client_is_given_to_no_other() {
    needs!(kvm, page_faults);
    let shared = Shared::new();
    let directory = shared.directory();
    let mut command = Command::new(binary());
    command.arg("pager").arg(shared.snapshot.directory()).arg("--pager-dir").arg(&directory);
    let mut pager = command.stdin(Stdio::null()).spawn().unwrap();
    wait_until("the pager listens", || directory.exists() && list(&directory).len() == 2);
    let socket = connect(&shared.socket());
    let len = 64_u64 << 20;
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let brought = File::from(rustix::fs::memfd_create("volt-ram", flags).unwrap());
    brought.set_len(len).unwrap();
    let ask = format!(r#"{{"Base":{{"version":4,"memory_len":{len}}}}}"#);
    let base = ask_for_base(&socket, &ask, Some(brought.as_fd()));
    for poison in POISONS {
        poison.spoil(&base, len);
        goes_on(&mut shared.restore(&[]));
    }
    let _ = pager.kill();
    limited("the killed pager is gone", || pager.wait()).unwrap();
}

#[test]
fn hostile_pager_client_cannot_affect_others() {
    needs!(kvm, page_faults);
    let shared = Shared::new();
    let mut guest = shared.restore(&["--paused"]);
    assert!(guest.ask("GET", "/", "").1.contains(r#""state":"Paused""#)); // the guest has its pager
    let connect = || connect(&shared.socket());
    let len = 64_u64 << 20;
    let base = format!(r#"{{"Base":{{"version":4,"memory_len":{len}}}}}"#);
    let file = File::open("/proc/self/exe").unwrap();
    for (asks, answer) in [
        (vec!["rubbish".to_owned()], r#"{"Refused":"expected value"#),
        (vec!["x".repeat(4000)], r#"{"Refused":"expected value"#),
        (vec![r#"{"Base":{"version":1,"memory_len":1}}"#.to_owned()], "version 4"),
        (vec![r#"{"Base":{"version":4,"memory_len":4096}}"#.to_owned()], ", not 4096"),
        (vec![format!(r#"{{"Serve":{{"start":4096,"len":{len}}}}}"#)], "has not asked for a base"),
        (vec![r#""Complete""#.to_owned()], "gone"),
        (vec![r#""Prefetch""#.to_owned()], "gone"),
        (vec![r#""Fetched""#.to_owned()], "gone"),
        (vec![base.clone(), r#""Fetched""#.to_owned()], r#""touched":0,"prefetch":null"#),
        (vec![base.clone(), r#""Prefetch""#.to_owned()], "gone"),
        (vec![base.clone(), format!(r#"{{"Serve":{{"start":4097,"len":{len}}}}}"#)], "does not fit a base"),
        (vec![base.clone(), r#"{"Serve":{"start":4096,"len":4096}}"#.to_owned()], "does not fit a base"),
        (
            vec![base.clone(), format!(r#"{{"Serve":{{"start":{},"len":{len}}}}}"#, u64::MAX - 4095)],
            "does not fit a base",
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
    // The list of pages to prefetch is no list, names missing pages, or names a page twice.
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
        (file.try_clone().unwrap(), "too long"),
        (File::open("/dev/zero").unwrap(), "not a regular file"),
        (cut, "a page beyond the end of memory"),
        (list(&[[0, 1], [pages - 1, 2]]), "a page beyond the end of memory"),
        (list(&[[u32::MAX, u32::MAX]]), "a page beyond the end of memory"),
        (list(&[[3, 0]]), "a page beyond the end of memory"),
        (list(&[[3, 2], [4, 1]]), "a page twice"),
    ] {
        let socket = connect();
        assert_eq!(say(&socket, &base, None), r#""Done""#);
        let said = say(&socket, r#""Prefetch""#, Some(list.as_fd()));
        assert!(said.contains("NotPrefetched") && said.contains(problem), "{said}");
    }
    // The descriptor that the client sends is no memory.
    let said = say(&connect(), &base, Some(file.as_fd()));
    assert!(said.contains("is not a VM's memory"), "{said}");
    guest.resume();
    goes_on(&mut guest);
    assert!(!numbers(&guest.output(), "count").is_empty());
}
