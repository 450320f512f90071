//! Networks for VMs that end with this program: that of a host, and one beyond it.
//!
//! ```text
//!  VMs ── host: 192.0.2.1, 203.0.113.1 (names) ── cable ── beyond: 192.0.2.254, 192.0.2.77 and on
//! ```
//!
//! Namespaces have no names. The kernel removes them with the program, which may end by a signal.
#![allow(unsafe_code)]

use std::fs::File;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::Command;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::{OrSay, Result};

/// The host's address, and that of its way out.
pub const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);
/// The address where the host has names resolved.
pub const RESOLVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
/// Networks of VMs that are reached through the host.
const BEHIND_THE_HOST: &str = "10.213.0.0/16";
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Longest question.
const LONGEST: usize = 512;

/// A network that this program does not live in.
#[derive(Debug)]
pub struct Beyond(File);

/// Moves this thread, and those that it starts, into a network of a host that forwards, and hides
/// `/dev/shm` behind an empty directory. Returns the network beyond, which has `addresses`.
///
/// # Errors
/// The host refuses: this takes root.
pub fn enter(addresses: &[Ipv4Addr]) -> Result<Beyond> {
    // SAFETY: memory safety does not depend on the thread's namespaces.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::NEWNET) }.or_say("make namespaces")?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .or_say("keep mounts apart")?;
    mount("tmpfs", "/dev/shm", "tmpfs", MountFlags::empty(), None).or_say("mount /dev/shm")?;
    let resolvers = Path::new("/dev/shm/resolv.conf");
    std::fs::write(resolvers, format!("nameserver {RESOLVER}\n")).or_say("write a resolv.conf")?;
    let place = std::fs::canonicalize(RESOLV_CONF).or_say(&format!("find {RESOLV_CONF}"))?;
    mount_bind(resolvers, place).or_say(&format!("mount {RESOLV_CONF}"))?;
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").or_say("forward packets")?;
    let beyond = Beyond::make()?;
    let far_end = format!("/proc/{}/fd/{}", std::process::id(), beyond.0.as_raw_fd());
    ip("link set lo up")?;
    ip(&format!("link add way type veth peer name way netns {far_end}"))?;
    ip(&format!("addr add {RESOLVER}/32 dev lo"))?;
    ip(&format!("addr add {HOST}/24 dev way"))?;
    beyond.inside(|| {
        ip("link set lo up")?;
        for address in addresses.iter().chain([&ROUTER]) {
            ip(&format!("addr add {address}/24 dev way"))?;
        }
        ip("link set way up")
    })?;
    ip("link set way up")?;
    ip(&format!("route add default via {ROUTER}"))?;
    beyond.inside(|| ip(&format!("route add {BEHIND_THE_HOST} via {HOST}")))?;
    Ok(beyond)
}

impl Beyond {
    fn make() -> Result<Self> {
        let make = || {
            // SAFETY: as above; the thread ends at once.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET)? };
            File::open("/proc/thread-self/ns/net")
        };
        let made = std::thread::spawn(make).join().map_err(|_| "a thread panicked")?;
        made.map(Self).or_say("make a network")
    }

    /// Calls `act` on a thread in the network. Sockets that it opens stay there, and processes.
    ///
    /// # Errors
    /// The call fails.
    pub fn inside<T: Send>(&self, act: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let enter_and_act = || {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
                .or_say("enter a network")?;
            act()
        };
        std::thread::scope(|scope| scope.spawn(enter_and_act).join()).map_err(|_| "a thread panicked")?
    }
}

/// Runs `ip` with these words.
///
/// # Errors
/// It fails.
pub fn ip(words: &str) -> Result<()> {
    let status = Command::new("ip").args(words.split(' ')).status().or_say("run ip")?;
    if status.success() { Ok(()) } else { Err(format!("ip {words} failed")) }
}

/// Answers questions for addresses of IPv4 in the background, for as long as the program lives (RFC 1035,
/// section 4.1).
///
/// # Errors
/// The address is taken.
pub fn resolve(address_of: impl Fn(&str) -> Option<Ipv4Addr> + Send + 'static) -> Result<()> {
    let socket = UdpSocket::bind((RESOLVER, 53)).or_say("listen for questions")?;
    std::thread::spawn(move || {
        let mut question = [0; LONGEST];
        while let Ok((len, from)) = socket.recv_from(&mut question) {
            if let Some(answer) = answer(&question[..len], &address_of) {
                // One that is lost is asked for again.
                let _ = socket.send_to(&answer, from);
            }
        }
    });
    Ok(())
}

fn answer(question: &[u8], address_of: &impl Fn(&str) -> Option<Ipv4Addr>) -> Option<Vec<u8>> {
    let (head, mut rest) = question.split_at_checked(12)?;
    let mut labels = Vec::new();
    while let Some((&len, more)) = rest.split_first().filter(|(len, _)| **len > 0) {
        let (label, behind) = more.split_at_checked(len.into())?;
        labels.push(String::from_utf8_lossy(label).to_lowercase());
        rest = behind;
    }
    // EDNS behind the question stays out.
    let [0, 0, kind, 0, 1, ..] = rest else { return None };
    let asked = &question[12..question.len() - rest.len() + 5];
    let address = address_of(&labels.join(".")).filter(|_| *kind == 1);
    let flags_and_counts = [0x81, 0x80, 0, 1, 0, address.is_some().into(), 0, 0, 0, 0];
    // A name that this one points to, the type, the class, a lifetime of 60 s, and a length.
    let record = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4];
    let record = address.map(|address| [&record[..], &address.octets()].concat());
    Some([&head[..2], &flags_and_counts, asked, &record.unwrap_or_default()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A question for an address of `a.Test` of this type, with EDNS.
    fn question(kind: u8) -> Vec<u8> {
        let head = [7, 8, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
        [&head[..], b"\x01a\x04Test\0", &[0, kind, 0, 1], &[0, 0, 41, 4, 0]].concat()
    }

    #[test]
    fn question_for_ipv4_is_answered_and_one_for_ipv6_gets_no_record() {
        let address_of = |name: &str| (name == "a.test").then_some(Ipv4Addr::new(192, 0, 2, 77));
        let asked = answer(&question(1), &address_of).unwrap();
        assert_eq!(asked[..12], [7, 8, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
        assert!(asked.ends_with(&[0, 60, 0, 4, 192, 0, 2, 77]), "{asked:?}");
        let none = answer(&question(28), &address_of).unwrap();
        assert_eq!((none[7], none.len()), (0, 12 + 8 + 4));
        assert_eq!(answer(&question(1)[..15], &address_of), None);
    }
}
