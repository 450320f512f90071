//! Networks by address translation in the kernel (`--net nat`): a tap in a network namespace without a name.
//!
//! ```text
//!  VM ── tap ─┬─ namespace: guest's addresses ──masquerade──> 10.119.x.y of the cable
//!             └─ cable (veth) ── host: table inet volt-nat ──masquerade──> the host's interfaces
//! ```
//!
//! The tap's descriptor alone keeps the namespace: when the VM ends, however it ends, the kernel removes the
//! tap, the cable and the namespace's rules. The host's table stays. The host's forwarding is demanded, and
//! never set.
#![allow(unsafe_code)]

mod links;
mod netlink;
mod ranges;
mod tables;

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::thread;

use rustix::net::netdevice::name_to_index;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use smoltcp::wire::IPV6_MIN_MTU;

use links::Prefixed;
use netlink::Netlink;
use ranges::{Cable, PAIR_V4, PAIR_V6, PAIRS};

/// Names of the two interfaces in a namespace.
const TAP: &str = "tap0";
const TO_HOST: &str = "host0";
const DRIVER: &str = "/dev/net/tun";
/// Settings of a namespace. Those of IPv6 are absent in a kernel without it.
const FORWARD_V4: &str = "/proc/sys/net/ipv4/ip_forward";
const FORWARD_V6: &str = "/proc/sys/net/ipv6/conf/all/forwarding";
/// Routes of IPv6.
const ROUTES_V6: &str = "/proc/thread-self/net/ipv6_route";

/// The end of the network that the guest's interface is connected to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NatSettings {
    /// The hardware address of the router.
    pub mac: [u8; 6],
    /// The router's addresses, which answer to ARP and neighbour discovery.
    pub addresses: Vec<Prefixed>,
    /// Longest packet in bytes.
    pub mtu: u16,
}

/// A network.
#[derive(Debug)]
pub(crate) struct NatLink {
    /// The tap, which passes a header for offloads. The network ends with its last descriptor.
    pub tap: OwnedFd,
    /// The network leads further by IPv6, too.
    pub has_v6: bool,
}

/// Makes a network. Nothing but the host's table stays behind if that fails.
///
/// # Errors
/// The host lacks something, which the error tells with its cure.
pub(crate) fn make(settings: &NatSettings) -> io::Result<NatLink> {
    let settings = settings.clone();
    // The thread moves to the new namespace, and ends there.
    let made = thread::Builder::new().name("volt-nat".into()).spawn(move || make_here(&settings))?;
    let made = made.join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")));
    // The starter tells a refusal of its own by the kind of an error alone.
    made.map_err(
        |error| if error.raw_os_error().is_some() { error } else { io::Error::other(error.to_string()) },
    )
}

/// Makes the host's table, as a network does first: it fails if the host lacks rights or the packet filter.
///
/// # Errors
/// As [`make`].
#[cfg(any(test, feature = "internal"))]
pub fn probe() -> io::Result<()> {
    make_table_of_host()
}

fn make_table_of_host() -> io::Result<()> {
    let filter = Netlink::filter().map_err(|error| explain("use the packet filter", error))?;
    let act = || format!("make the table inet {}", tables::TABLE);
    tables::make_of_host(&filter).map_err(|error| explain(act(), error))
}

/// Makes a network, and leaves the calling thread in its namespace.
fn make_here(settings: &NatSettings) -> io::Result<NatLink> {
    if read_setting(FORWARD_V4)?.as_deref() != Some("1") {
        return Err(io::Error::other(
            "this host does not forward IPv4; run `sysctl -w net.ipv4.ip_forward=1`, or give --net user",
        ));
    }
    let leads_by_v6 = read_setting(FORWARD_V6)?.as_deref() == Some("1")
        && fs::read_to_string(ROUTES_V6).is_ok_and(|table| has_default_route(&table));
    let host = Netlink::routing()?;
    make_table_of_host()?;
    // SAFETY: the thread's namespace alone changes, and it ends after this function.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) })
        .map_err(|error| explain("make a network namespace", error))?;
    let namespace = Namespace::enter(settings.mtu)?;
    let tap = namespace.make_tap(settings).map_err(|error| explain("make a tap", error))?;
    let cable = make_cable(&host, &namespace, settings.mtu).map_err(|error| explain("make a veth", error))?;
    namespace
        .connect(&host, cable, leads_by_v6)
        .map_err(|error| explain(format!("connect the veth {}", cable.name()), error))?;
    Ok(NatLink { tap, has_v6: leads_by_v6 && namespace.has_v6 })
}

/// The namespace of the thread.
struct Namespace {
    file: File,
    routing: Netlink,
    filter: Netlink,
    /// The kernel has IPv6.
    has_v6: bool,
}

impl Namespace {
    /// Prepares the namespace that the thread is in, which is new, for packets of up to `mtu` bytes.
    fn enter(mtu: u16) -> io::Result<Self> {
        let path = "/proc/thread-self/ns/net";
        let file = File::open(path).map_err(|error| explain(format!("open {path}"), error))?;
        let (routing, filter) = (Netlink::routing()?, Netlink::filter()?);
        write_setting(FORWARD_V4)?;
        // An interface with less has no IPv6.
        let has_v6 = usize::from(mtu) >= IPV6_MIN_MTU && read_setting(FORWARD_V6)?.is_some();
        if has_v6 {
            write_setting(FORWARD_V6)?;
        }
        Ok(Self { file, routing, filter, has_v6 })
    }

    /// Makes the tap, with the router's addresses.
    fn make_tap(&self, NatSettings { mac, addresses, mtu }: &NatSettings) -> io::Result<OwnedFd> {
        let mut options = File::options();
        let tap = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(DRIVER);
        let tap = tap.map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                io::Error::other(format!("{DRIVER} is missing; load the module tun, or give --net user"))
            }
            _ => explain(format!("open {DRIVER}"), error),
        })?;
        let mut request = [0_u8; 40];
        request[..TAP.len()].copy_from_slice(TAP.as_bytes());
        let flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        request[libc::IFNAMSIZ..libc::IFNAMSIZ + 2].copy_from_slice(&flags.to_ne_bytes());
        // SAFETY: TUNSETIFF takes an ifreq, a name and flags in 40 bytes.
        check(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, request.as_mut_ptr()) })?;
        let index = name_to_index(&self.routing, TAP)?;
        links::set_address_and_mtu(&self.routing, index, *mac, *mtu)?;
        links::bring_up(&self.routing, index, self.has_v6)?;
        links::add_addresses(&self.routing, index, &self.usable(addresses))?;
        Ok(tap.into())
    }

    /// Gives both ends of a cable addresses, and brings them up. Rules come first.
    fn connect(&self, host: &Netlink, cable: Cable, leads_by_v6: bool) -> io::Result<()> {
        let far = name_to_index(&self.routing, TO_HOST)?;
        tables::make_own(&self.filter, name_to_index(&self.routing, TAP)?, far)?;
        for (netlink, index, end) in
            [(host, name_to_index(host, &cable.name())?, cable.near()), (&self.routing, far, cable.far())]
        {
            links::bring_up(netlink, index, self.has_v6)?;
            let addresses = [(end.v4.into(), PAIR_V4), (end.v6.into(), PAIR_V6)];
            links::add_addresses(netlink, index, &self.usable(&addresses))?;
        }
        links::add_default_route(&self.routing, cable.near().v4.into())?;
        // Without this route the guest is told at once that its packets of IPv6 lead nowhere.
        if leads_by_v6 && self.has_v6 {
            links::add_default_route(&self.routing, cable.near().v6.into())?;
        }
        Ok(())
    }

    /// The addresses that the kernel has a protocol for.
    fn usable(&self, addresses: &[Prefixed]) -> Vec<Prefixed> {
        addresses
            .iter()
            .copied()
            .filter(|(address, _)| matches!(address, IpAddr::V4(_)) || self.has_v6)
            .collect()
    }
}

/// Makes a cable between the host and the namespace. The kernel gives a name once, so that processes that
/// start at the same time get different ones.
fn make_cable(host: &Netlink, namespace: &Namespace, mtu: u16) -> io::Result<Cable> {
    let mut random = [0; 4];
    getrandom(&mut random, GetRandomFlags::empty())?;
    let first = u32::from_ne_bytes(random) % PAIRS;
    for number in (first..PAIRS).chain(0..first) {
        let cable = Cable(number);
        match links::make_pair(host, &cable.name(), (namespace.file.as_fd(), TO_HOST), mtu) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            made => return made.map(|()| cable),
        }
    }
    Err(io::Error::other("all pairs of addresses are in use"))
}

/// Whether a table of `/proc/net/ipv6_route` has a default route that leads somewhere.
fn has_default_route(table: &str) -> bool {
    table.lines().any(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let is_default = fields.first().is_some_and(|target| target.bytes().all(|digit| digit == b'0'))
            && fields.get(1) == Some(&"00");
        // The kernel's own route that refuses all packets is one of `lo`.
        is_default && fields.last().is_some_and(|interface| *interface != "lo")
    })
}

/// Reads a setting, if the kernel has it.
fn read_setting(path: &str) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io::Error::new(error.kind(), format!("cannot read {path}: {error}"))),
    }
}

/// Enables a setting of the thread's namespace.
fn write_setting(path: &str) -> io::Result<()> {
    fs::write(path, "1").map_err(|error| match error.raw_os_error() {
        Some(libc::EROFS) => io::Error::other(format!(
            "{path} is read-only here; mount /proc/sys writable (a container's runtime: --privileged), or \
             give --net user"
        )),
        _ => io::Error::new(error.kind(), format!("cannot write {path}: {error}")),
    })
}

/// Says what the host lacks.
fn explain(act: impl std::fmt::Display, error: io::Error) -> io::Error {
    let cure = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "run volt-vmm as root, or with CAP_NET_ADMIN and CAP_SYS_ADMIN, or give --net user"
        }
        Some(libc::EOPNOTSUPP | libc::ENOENT | libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT | libc::EINVAL) => {
            "the kernel needs veth, tun and nf_tables with nft_masq, nft_ct and nft_chain_nat (modprobe \
             tells which is missing), or give --net user"
        }
        _ => return io::Error::new(error.kind(), format!("cannot {act}: {error}")),
    };
    io::Error::other(format!("cannot {act}: {error}; {cure}"))
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
