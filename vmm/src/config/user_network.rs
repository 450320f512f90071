//! Addresses of a guest behind passt or nat, the same in every VM. passt's own defaults are those of the
//! host, which no image and no snapshot can know.
//!
//! ```text
//!  guest (eth0) ──> gateway ──> all that this process reaches, but 127.0.0.1
//!               ──> resolver, UDP port 53 ──> the first resolver of this host's /etc/resolv.conf
//! ```
//!
//! With nat, the kernel is the gateway, and the device is the resolver.
//!
//! The addresses mean nothing outside of the VM. passt translates to and from sockets of the host, so that a
//! network of the same numbers stays in reach, except for the guest's own address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use volt_policy::{IpNet, Ipv6Net};

/// Addresses of one version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UserNetwork<A> {
    /// The guest's address, which DHCP and router advertisements give it.
    pub address: A,
    /// Bits of the network in the address.
    pub prefix: u8,
    /// The router.
    pub gateway: A,
    /// The resolver: with nat always, with passt if
    /// [`NetConfig::dns_forward`](super::devices::NetConfig::dns_forward) is set.
    pub resolver: A,
}

/// Addresses of IPv4, from a network that hosts rarely have.
pub const IPV4: UserNetwork<Ipv4Addr> = UserNetwork {
    address: Ipv4Addr::new(10, 118, 111, 15),
    prefix: 24,
    gateway: Ipv4Addr::new(10, 118, 111, 2),
    resolver: Ipv4Addr::new(10, 118, 111, 3),
};
/// Unique local addresses of IPv6. Programs prefer IPv4 to them for names that have both.
pub const IPV6: UserNetwork<Ipv6Addr> = UserNetwork {
    address: Ipv6Addr::new(0xfd76, 0x6f6c, 0x7400, 0, 0, 0, 0, 0x15),
    prefix: 64,
    gateway: Ipv6Addr::new(0xfd76, 0x6f6c, 0x7400, 0, 0, 0, 0, 2),
    resolver: Ipv6Addr::new(0xfd76, 0x6f6c, 0x7400, 0, 0, 0, 0, 3),
};
/// Longest packet without headers that passt takes. Its DHCP names it if no other is configured.
pub const LONGEST_PACKET: u16 = 65_520;
/// Longest packet with nat, if no other is configured.
pub const ETHERNET_PACKET: u16 = 1500;

/// The networks that have the guest's addresses.
pub(crate) fn guest_addresses() -> Vec<IpNet> {
    let v6 = Ipv6Net::new_assert(IPV6.address, IPV6.prefix).trunc();
    vec![IpAddr::V4(IPV4.address).into(), v6.into()]
}
