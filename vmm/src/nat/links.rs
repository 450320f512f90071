//! Interfaces, addresses and routes (rtnetlink(7)).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use super::netlink::{Attributes, Messages, Netlink};

/// Attributes of a link, and of its parts.
const IFLA_MTU: u16 = libc::IFLA_MTU;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
/// Makes no address of IPv6 by itself.
const GENERATES_NONE: u8 = 1;

/// Flags of requests that make something.
const CREATE: i32 = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;

/// An address and the bits of its network.
pub(super) type Prefixed = (IpAddr, u8);

/// `ifinfomsg`.
fn link_header(index: u32, flags: i32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&flags.to_ne_bytes());
    header
}

/// Makes a pair of connected interfaces: one of this name in the namespace of the socket, and its peer in
/// another one.
///
/// # Errors
/// EEXIST if an interface has the name; errors of the kernel.
pub(super) fn make_pair(
    netlink: &Netlink,
    name: &str,
    (namespace, peer): (BorrowedFd<'_>, &str),
    mtu: u16,
) -> io::Result<()> {
    let mut messages = Messages::default();
    let mtu = u32::from(mtu).to_ne_bytes();
    messages.add(libc::RTM_NEWLINK, CREATE, &link_header(0, 0), |link| {
        link.text(libc::IFLA_IFNAME, name);
        link.add(IFLA_MTU, &mtu);
        link.nest(libc::IFLA_LINKINFO, |info| {
            info.text(IFLA_INFO_KIND, "veth");
            info.nest(IFLA_INFO_DATA, |data| {
                data.nest_behind(VETH_INFO_PEER, &link_header(0, 0), |other| {
                    other.text(libc::IFLA_IFNAME, peer);
                    other.add(IFLA_MTU, &mtu);
                    other.add(libc::IFLA_NET_NS_FD, &namespace.as_raw_fd().to_ne_bytes());
                });
            });
        });
    });
    netlink.ask(&messages)
}

/// Brings an interface up, without addresses of IPv6 that nobody gave it.
///
/// # Errors
/// Errors of the kernel.
pub(super) fn bring_up(netlink: &Netlink, index: u32, has_v6: bool) -> io::Result<()> {
    set_link(netlink, index, 0, |link| {
        if has_v6 {
            link.nest(libc::IFLA_AF_SPEC, |families| {
                families.nest(libc::AF_INET6 as u16, |of_v6| {
                    of_v6.add(IFLA_INET6_ADDR_GEN_MODE, &[GENERATES_NONE]);
                });
            });
        }
    })?;
    set_link(netlink, index, libc::IFF_UP, |_| ())
}

/// Gives an interface a hardware address and an MTU.
///
/// # Errors
/// Errors of the kernel.
pub(super) fn set_address_and_mtu(netlink: &Netlink, index: u32, mac: [u8; 6], mtu: u16) -> io::Result<()> {
    set_link(netlink, index, 0, |link| {
        link.add(libc::IFLA_ADDRESS, &mac);
        link.add(IFLA_MTU, &u32::from(mtu).to_ne_bytes());
    })
}

fn set_link(
    netlink: &Netlink,
    index: u32,
    flags: i32,
    attributes: impl FnOnce(&mut Attributes<'_>),
) -> io::Result<()> {
    let mut messages = Messages::default();
    messages.add(libc::RTM_SETLINK, libc::NLM_F_ACK, &link_header(index, flags), attributes);
    netlink.ask(&messages)
}

/// Gives an interface addresses, which it may use at once.
///
/// # Errors
/// Errors of the kernel.
pub(super) fn add_addresses(netlink: &Netlink, index: u32, addresses: &[Prefixed]) -> io::Result<()> {
    for (address, prefix) in addresses {
        let mut messages = Messages::default();
        // `ifaddrmsg`
        let flags = if address.is_ipv6() { libc::IFA_F_NODAD as u8 } else { 0 };
        let mut header = [family(*address), *prefix, flags, 0, 0, 0, 0, 0];
        header[4..].copy_from_slice(&index.to_ne_bytes());
        messages.add(libc::RTM_NEWADDR, CREATE, &header, |attributes| {
            attributes.add(libc::IFA_LOCAL, &bytes(*address));
            attributes.add(libc::IFA_ADDRESS, &bytes(*address));
        });
        netlink.ask(&messages)?;
    }
    Ok(())
}

/// Adds a default route by way of this address.
///
/// # Errors
/// Errors of the kernel.
pub(super) fn add_default_route(netlink: &Netlink, gateway: IpAddr) -> io::Result<()> {
    let mut messages = Messages::default();
    // `rtmsg`
    let (table, protocol, kind) = (libc::RT_TABLE_MAIN, libc::RTPROT_STATIC, libc::RTN_UNICAST);
    let header = [family(gateway), 0, 0, 0, table, protocol, libc::RT_SCOPE_UNIVERSE, kind, 0, 0, 0, 0];
    messages.add(libc::RTM_NEWROUTE, CREATE, &header, |route| {
        route.add(libc::RTA_GATEWAY, &bytes(gateway));
    });
    netlink.ask(&messages)
}

fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}

fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => Ipv4Addr::octets(&address).to_vec(),
        IpAddr::V6(address) => Ipv6Addr::octets(&address).to_vec(),
    }
}
