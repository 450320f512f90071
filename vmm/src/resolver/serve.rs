//! The loop of the resolver.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

use super::lookup::Lookup;
use super::protocol::{decode_ask, encode_answer, encode_network, encode_problem};
use super::servers::{FILE, PORT, ServersFile};
use crate::host_network::Files;

/// Most questions at once. A device asks no more.
const MOST_LOOKUPS: usize = 64;
/// Least time between two looks at the host's network: each start of another VM may change it.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
/// Time after which a device that took no news of the host's network is told again.
const BETWEEN_NEWS: Duration = Duration::from_secs(1);
/// Bytes of the longest question: a number, a type and a name.
const LONGEST_ASK: usize = 4 + 2 + 256;
/// `RTMGRP_IPV4_IFADDR`, `RTMGRP_IPV6_IFADDR`, `RTMGRP_IPV4_ROUTE` and `RTMGRP_IPV6_ROUTE`
/// (linux/rtnetlink.h).
const CHANGES: u32 = 0x10 | 0x100 | 0x40 | 0x400;

/// A view of the host's network. It is opened before a resolver is confined.
#[derive(Debug)]
pub(crate) struct HostView {
    files: Files,
    /// Readable when something changes.
    changes: OwnedFd,
}

impl HostView {
    /// Opens it. Without one, which the device is told, a resolver answers all the same.
    pub fn open(device: &OwnedFd) -> Option<Self> {
        let opened =
            Files::open().and_then(|files| changes_of_network().map(|changes| Self { files, changes }));
        let told = |error: &io::Error| {
            tell_problem(device, &format!("the resolver cannot watch the host's network: {error}"));
        };
        opened.inspect_err(told).ok()
    }
}

/// Serves a device until it closes its socket, or until the list of servers cannot be read any more: the next
/// resolver may be able to.
pub(crate) fn run(device: &OwnedFd, host: Option<&HostView>) {
    serve(device, host, ServersFile::at(FILE, PORT));
}

/// As [`run`], with the servers of another file.
pub(super) fn serve(device: &OwnedFd, host: Option<&HostView>, mut servers: ServersFile) {
    let changes = host.map(|host| &host.changes);
    let mut lookups = Vec::<Lookup>::new();
    // When the device is told of the host's network next, if it has to be.
    let (mut is_known, mut next_news) = (false, Instant::now());
    loop {
        let now = Instant::now();
        if !is_known && now >= next_news {
            is_known = tell_network(device, host);
            next_news = now + if is_known { BETWEEN_LOOKS } else { BETWEEN_NEWS };
        }
        let ready = wait(device, changes, &lookups, (!is_known).then_some(next_news));
        let Ok([device_ready, changes_ready, lookups_ready @ ..]) = ready.as_deref() else { return };
        let now = Instant::now();
        for (lookup, is_ready) in lookups.iter_mut().zip(lookups_ready) {
            let answer = if *is_ready { lookup.go_on(now) } else { None };
            if let Some(answer) = answer {
                tell(device, &encode_answer(lookup.number(), Some(&answer)));
                lookup.is_answered = true;
                continue;
            }
            lookup.check_time(now);
            if lookup.has_failed() {
                tell(device, &encode_answer(lookup.number(), None));
            }
        }
        lookups.retain(|lookup| !lookup.is_answered && !lookup.has_failed());
        if *changes_ready {
            drain(changes);
            is_known = false;
        }
        if *device_ready && !take_questions(device, &mut servers, &mut lookups, now) {
            return;
        }
    }
}

/// Waits, at most until the next news. Returns whether the device, the changes and each lookup are ready.
fn wait(
    device: &OwnedFd,
    changes: Option<&OwnedFd>,
    lookups: &[Lookup],
    next_news: Option<Instant>,
) -> io::Result<Vec<bool>> {
    let mut polled = vec![PollFd::new(device, PollFlags::IN)];
    // Without changes, the device stands in their place and is ignored.
    let changes_flags = if changes.is_some() { PollFlags::IN } else { PollFlags::empty() };
    polled.push(PollFd::from_borrowed_fd(changes.unwrap_or(device).as_fd(), changes_flags));
    for lookup in lookups {
        let (socket, flags) = lookup.waits_for().unwrap_or((device.as_fd(), PollFlags::empty()));
        polled.push(PollFd::from_borrowed_fd(socket, flags));
    }
    let until = lookups.iter().filter_map(Lookup::until).chain(next_news).min();
    let timeout = until.map(|until| {
        let left = until.saturating_duration_since(Instant::now());
        Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() }
    });
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let mut ready: Vec<_> = polled.iter().map(|entry| !entry.revents().is_empty()).collect();
    ready[1] &= changes.is_some();
    Ok(ready)
}

/// Takes the questions that wait. Returns false if the device has closed its socket.
fn take_questions(
    device: &OwnedFd,
    servers: &mut ServersFile,
    lookups: &mut Vec<Lookup>,
    now: Instant,
) -> bool {
    loop {
        let mut bytes = [0; LONGEST_ASK];
        let (_, len) = match recv(device, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return false,
            Ok(received) => received,
            Err(rustix::io::Errno::AGAIN) => return true,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return false,
        };
        let Some(ask) = decode_ask(&bytes[..len.min(LONGEST_ASK)]) else { continue };
        let list = match servers.now() {
            Ok(list) => list,
            Err(error) => {
                tell_problem(device, &format!("the resolver cannot read {FILE}: {error}"));
                return false;
            }
        };
        let lookup = Lookup::new(ask, list, now);
        if lookups.len() >= MOST_LOOKUPS || lookup.has_failed() {
            tell(device, &encode_answer(lookup.number(), None));
        } else {
            lookups.push(lookup);
        }
    }
}

/// Returns whether the device has the message. One that does not take it has too many, and gives up a
/// question itself.
fn tell(device: &OwnedFd, message: &[u8]) -> bool {
    send(device, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok()
}

/// Tells the device what to log: the descriptors of this process's log are closed.
fn tell_problem(device: &OwnedFd, problem: &str) {
    tell(device, &encode_problem(problem));
}

/// Returns whether the device knows it.
fn tell_network(device: &OwnedFd, host: Option<&HostView>) -> bool {
    match host.map(|host| host.files.read()) {
        None => true,
        Some(Ok(network)) => tell(device, &encode_network(&network)),
        Some(Err(error)) => {
            tell_problem(device, &format!("the resolver cannot read the host's network: {error}"));
            true
        }
    }
}

/// A socket that is readable when an address or a route of the host comes or goes (rtnetlink(7)).
fn changes_of_network() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Without a protocol, it is NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, CHANGES))?;
    Ok(socket)
}

/// Takes all messages. The network is read anew, whatever they say.
fn drain(changes: Option<&OwnedFd>) {
    let Some(changes) = changes else { return };
    let mut bytes = [0; 8192];
    // An error says that messages were lost.
    while recv(changes, &mut bytes[..], RecvFlags::DONTWAIT).is_ok_and(|(_, len)| len > 0) {}
}
