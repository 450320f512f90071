//! Ranges of addresses that a guest of other people's code has no business in: the host's own networks, and
//! services that trust whoever reaches them. A policy denies them unless a rule by network lies within one.
//!
//! Sources: the IANA registries of special-purpose addresses (RFC 6890), and the clouds' documentation of
//! their metadata services.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Why a range is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RangeKind {
    /// The host that runs the VM.
    Host,
    /// Addresses that mean the machine itself.
    Loopback,
    /// Addresses of one link, among them the metadata service of most clouds.
    LinkLocal,
    /// Private networks (RFC 1918), shared ones (RFC 6598) and unique local addresses (RFC 4193).
    Private,
    /// A service of a cloud for its own VMs.
    Cloud,
    /// Groups of machines.
    Multicast,
    /// Addresses that no machine has.
    Reserved,
}

impl fmt::Display for RangeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "address of the host",
            Self::Loopback => "loopback address",
            Self::LinkLocal => "link-local address",
            Self::Private => "private address",
            Self::Cloud => "service of a cloud",
            Self::Multicast => "multicast address",
            Self::Reserved => "reserved address",
        })
    }
}

/// A closed range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Its addresses.
    pub net: IpNet,
    /// Why it is closed.
    pub kind: RangeKind,
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8, kind: RangeKind) -> Range {
    Range { net: IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)), kind }
}

const fn v6(first: u16, second: u16, third: u16, last: u16, prefix: u8, kind: RangeKind) -> Range {
    let address = Ipv6Addr::new(first, second, third, 0, 0, 0, 0, last);
    Range { net: IpNet::V6(Ipv6Net::new_assert(address, prefix)), kind }
}

/// The ranges that are the same on every host. Networks of documentation and of benchmarks are open: no host
/// of the Internet has them, and tests do.
pub(crate) const RANGES: [Range; 21] = [
    v4(0, 0, 0, 0, 8, RangeKind::Reserved),
    v4(10, 0, 0, 0, 8, RangeKind::Private),
    v4(100, 64, 0, 0, 10, RangeKind::Private),
    v4(127, 0, 0, 0, 8, RangeKind::Loopback),
    // Azure's: DHCP, DNS, health, and the agent's channel.
    v4(168, 63, 129, 16, 32, RangeKind::Cloud),
    v4(169, 254, 0, 0, 16, RangeKind::LinkLocal),
    v4(172, 16, 0, 0, 12, RangeKind::Private),
    // Oracle's metadata service is 192.0.0.192.
    v4(192, 0, 0, 0, 24, RangeKind::Cloud),
    v4(192, 88, 99, 0, 24, RangeKind::Reserved),
    v4(192, 168, 0, 0, 16, RangeKind::Private),
    v4(224, 0, 0, 0, 4, RangeKind::Multicast),
    v4(240, 0, 0, 0, 4, RangeKind::Reserved),
    v6(0, 0, 0, 0, 128, RangeKind::Reserved),
    v6(0, 0, 0, 1, 128, RangeKind::Loopback),
    v6(0x100, 0, 0, 0, 64, RangeKind::Reserved),
    // Teredo: the address of IPv4 in it is not that of the far side.
    v6(0x2001, 0, 0, 0, 32, RangeKind::Reserved),
    v6(0x64, 0xff9b, 1, 0, 48, RangeKind::Private),
    // Among them the metadata services of AWS and Google Cloud.
    v6(0xfc00, 0, 0, 0, 7, RangeKind::Private),
    v6(0xfe80, 0, 0, 0, 10, RangeKind::LinkLocal),
    v6(0xfec0, 0, 0, 0, 10, RangeKind::Private),
    v6(0xff00, 0, 0, 0, 8, RangeKind::Multicast),
];

/// The address of IPv4 that an address of IPv6 leads to, by translation or a tunnel: mapped and compatible
/// ones (RFC 4291, section 2.5.5), NAT64 (RFC 6052), stateless translation (RFC 2765), 6to4 (RFC 3056) and
/// ISATAP (RFC 5214). A network's own prefix of NAT64 cannot be known.
pub(crate) fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let octets = address.octets();
    let at = |from: usize| Ipv4Addr::new(octets[from], octets[from + 1], octets[from + 2], octets[from + 3]);
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => Some(at(12)),
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 || low > 1 => Some(at(12)),
        [0, 0, 0, 0, 0xffff, 0, ..] => Some(at(12)),
        [0x2002, ..] => Some(at(2)),
        [.., 0 | 0x200, 0x5efe, _, _] => Some(at(12)),
        _ => None,
    }
}

/// Both addresses that an address means: itself, and that of IPv4 where it leads there.
pub(crate) fn forms(address: IpAddr) -> impl Iterator<Item = IpAddr> {
    let other = match address {
        IpAddr::V6(v6) => embedded(v6).map(IpAddr::V4),
        IpAddr::V4(_) => None,
    };
    [Some(address), other].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(address: &str) -> Option<RangeKind> {
        let mut found = forms(address.parse().unwrap());
        found.find_map(|form| RANGES.iter().find(|range| range.net.contains(&form)).map(|range| range.kind))
    }

    #[test]
    fn addresses_of_the_host_s_surroundings_are_closed() {
        for (address, kind) in [
            ("127.0.0.1", RangeKind::Loopback),
            ("::1", RangeKind::Loopback),
            ("0.0.0.0", RangeKind::Reserved),
            ("::", RangeKind::Reserved),
            ("10.0.0.1", RangeKind::Private),
            ("172.31.255.255", RangeKind::Private),
            ("192.168.1.1", RangeKind::Private),
            ("100.100.100.200", RangeKind::Private),
            ("169.254.169.254", RangeKind::LinkLocal),
            ("fd00:ec2::254", RangeKind::Private),
            ("fd20:ce::254", RangeKind::Private),
            ("fe80::1", RangeKind::LinkLocal),
            ("febf::1", RangeKind::LinkLocal),
            ("168.63.129.16", RangeKind::Cloud),
            ("192.0.0.192", RangeKind::Cloud),
            ("224.0.0.251", RangeKind::Multicast),
            ("255.255.255.255", RangeKind::Reserved),
            ("ff02::fb", RangeKind::Multicast),
            ("2001:0:1::1", RangeKind::Reserved),
        ] {
            assert_eq!(kind_of(address), Some(kind), "{address}");
        }
    }

    #[test]
    fn ipv6_that_leads_to_a_closed_ipv4_is_closed_too() {
        for address in [
            "::ffff:127.0.0.1",
            "::10.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::1",
            "::ffff:0:10.0.0.1",
            "2001:db8::5efe:10.0.0.1",
            "2001:db8::200:5efe:10.0.0.1",
        ] {
            assert!(kind_of(address).is_some(), "{address}");
        }
        for address in ["::ffff:192.0.2.1", "64:ff9b::c000:201", "2002:c000:201::1"] {
            assert_eq!(kind_of(address), None, "{address}");
        }
    }

    #[test]
    fn addresses_of_the_internet_and_of_tests_are_open() {
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.2.1",
            "198.18.0.1",
            "203.0.113.80",
            "100.63.0.1",
            "100.128.0.1",
            "168.63.129.17",
            "2606:4700::1111",
            "2001:db8::1",
            "2001:4860:4860::8888",
            "fbff::1",
        ] {
            assert_eq!(kind_of(address), None, "{address}");
        }
    }
}
