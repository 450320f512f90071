//! The network of this host: its addresses and default routes, in the network namespace of this process.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::FileExt;

use volt_policy::{HostNetwork, IpNet};

/// Routes of IPv4, as a trie. An address of the host is one with a route to itself.
const V4: &str = "/proc/self/net/fib_trie";
/// Addresses of IPv6. A kernel without IPv6 has no such file.
const V6: &str = "/proc/self/net/if_inet6";

/// Routes of IPv4 and of IPv6, as tables (`fib_route_seq_show` and `rt6_info_route` of Linux's
/// net/ipv4/fib_trie.c and net/ipv6/route.c).
const ROUTES_V4: &str = "/proc/self/net/route";
const ROUTES_V6: &str = "/proc/self/net/ipv6_route";
/// Bits of the widest network that is a host's own.
const WIDEST: u8 = 8;
/// `RTF_LOCAL` and `RTF_ANYCAST` (linux/ipv6_route.h).
const LOCAL: u32 = 0x8000_0000 | 0x0010_0000;
/// `RTF_REJECT` (linux/route.h).
const REJECTS: u32 = 0x200;

/// The files of the kernel about it, which can be read again and again.
#[derive(Debug)]
pub(crate) struct Files {
    v4: File,
    /// A kernel without IPv6 has none about that.
    v6: Option<File>,
    routes_v4: File,
    routes_v6: Option<File>,
}

/// Reads it.
///
/// # Errors
/// `/proc` is not there.
pub(crate) fn read() -> io::Result<HostNetwork> {
    Files::open()?.read()
}

impl Files {
    /// Opens them.
    ///
    /// # Errors
    /// `/proc` is not there.
    pub fn open() -> io::Result<Self> {
        let (v6, routes_v6) = (of_v6(V6)?, of_v6(ROUTES_V6)?);
        Ok(Self { v4: File::open(V4)?, v6, routes_v4: File::open(ROUTES_V4)?, routes_v6 })
    }

    /// Reads the network as it is now.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn read(&self) -> io::Result<HostNetwork> {
        let of_v6 = |file: &Option<File>| file.as_ref().map_or(Ok(String::new()), text);
        let (v6, routes_v6) = (of_v6(&self.v6)?, of_v6(&self.routes_v6)?);
        Ok(parse(&text(&self.v4)?, &v6, &text(&self.routes_v4)?, &routes_v6))
    }
}

/// The content of a file from its start on.
fn text(file: &File) -> io::Result<String> {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    loop {
        match file.read_at(&mut part, bytes.len() as u64) {
            Ok(0) => break,
            Ok(len) => bytes.extend_from_slice(&part[..len]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    String::from_utf8(bytes).map_err(|_| ErrorKind::InvalidData.into())
}

fn parse(trie: &str, table_v6: &str, routes_v4: &str, routes_v6: &str) -> HostNetwork {
    let mut all = v4(trie);
    all.extend(v6(table_v6));
    all.extend(local_v6(routes_v6));
    all.retain(|net| !net.addr().is_loopback());
    all.sort_unstable();
    // Two tables of routes have each address.
    all.dedup();
    let (routes_v4, routes_v6) = (has_default_v4(routes_v4), has_default_v6(routes_v6));
    HostNetwork { addresses: all, routes_v4, routes_v6 }
}

/// A file about IPv6, if there is one.
fn of_v6(path: &str) -> io::Result<Option<File>> {
    match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// The networks of IPv6 to which a table has routes that end at the host.
fn local_v6(table: &str) -> Vec<IpNet> {
    let net = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let flags = u32::from_str_radix(fields.get(8)?, 16).ok()?;
        let address = Ipv6Addr::from_bits(u128::from_str_radix(fields.first()?, 16).ok()?);
        let prefix = u8::from_str_radix(fields.get(1)?, 16).ok()?;
        (flags & LOCAL != 0 && prefix >= WIDEST).then(|| IpNet::new(address.into(), prefix).ok())?
    };
    table.lines().filter_map(net).collect()
}

/// Whether a table has a route of IPv4 to everywhere: interface, target, gateway, flags, three numbers, mask.
fn has_default_v4(table: &str) -> bool {
    table.lines().skip(1).any(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let number = |at: usize| u32::from_str_radix(fields.get(at)?, 16).ok();
        (number(1), number(7)) == (Some(0), Some(0)) && number(3).is_some_and(|flags| flags & REJECTS == 0)
    })
}

/// Whether a table has a route of IPv6 to everywhere: target, its prefix, six other fields, flags, interface.
fn has_default_v6(table: &str) -> bool {
    table.lines().any(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let number = |at: usize| u128::from_str_radix(fields.get(at)?, 16).ok();
        let is_default = (number(0), number(1)) == (Some(0), Some(0));
        is_default && number(8).is_some_and(|flags| flags & u128::from(REJECTS) == 0)
    })
}

fn v4(trie: &str) -> Vec<IpNet> {
    let (mut found, mut leaf) = (Vec::new(), None);
    for line in trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse::<IpAddr>().ok();
        } else if let Some(prefix) = line.strip_suffix(" host LOCAL").and_then(|line| line.strip_prefix('/'))
        {
            // A wider one is no network of the host: a proxy takes all packets by it (TPROXY).
            let prefix = prefix.parse().ok().filter(|prefix| *prefix >= WIDEST);
            found.extend(leaf.zip(prefix).and_then(|(address, prefix)| IpNet::new(address, prefix).ok()));
        }
    }
    found
}

fn v6(table: &str) -> Vec<IpNet> {
    let address = |line: &str| u128::from_str_radix(line.split_whitespace().next()?, 16).ok();
    table.lines().filter_map(address).map(|bits| IpAddr::from(Ipv6Addr::from_bits(bits)).into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_the_local_leaves_of_the_trie() {
        let trie = "Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 192.0.2.0/24 2 0 2
        |-- 192.0.2.0
           /24 link UNICAST
Local:
  +-- 0.0.0.0/0 3 0 5
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
        |-- 127.255.255.255
           /32 link BROADCAST
     +-- 192.0.2.0/24 2 0 2
        |-- 192.0.2.21
           /32 host LOCAL
";
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpNet>>();
        assert_eq!(v4(trie), nets(&["127.0.0.1/32", "192.0.2.21/32"]));
        assert_eq!(v4("|-- 0.0.0.0\n/0 host LOCAL"), []);
        let any = "|-- 198.51.100.0\n/24 host LOCAL";
        assert_eq!(v4(any), nets(&["198.51.100.0/24"]));
    }

    #[test]
    fn addresses_of_ipv6_are_the_first_column() {
        let table = "00000000000000000000000000000001 01 80 10 80       lo
20010db8000000000000000000000021 02 40 00 80     eth0
";
        let found: Vec<_> = v6(table).iter().map(IpNet::addr).collect();
        assert_eq!(found, [IpAddr::V6(Ipv6Addr::LOCALHOST), "2001:db8::21".parse().unwrap()]);
    }

    #[test]
    fn default_routes_are_told_from_others() {
        let head = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n";
        let on_link = "eth0 000200C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n";
        let default = "eth0 00000000 FE0200C0 0003 0 0 0 00000000 0 0 0\n";
        let rejected = "* 00000000 00000000 0200 0 0 0 00000000 0 0 0\n";
        let half = "tun0 00000000 00000000 0001 0 0 0 00000080 0 0 0\n";
        for (routes, has_default) in [(on_link, false), (default, true), (rejected, false), (half, false)] {
            assert_eq!(has_default_v4(&[head, on_link, routes].concat()), has_default, "{routes}");
        }
        let none = "0".repeat(32);
        let via = "20010db80000000000000000000000fe";
        let line = |prefix: &str, gateway: &str, flags: &str, interface: &str| {
            format!("{none} {prefix} {none} 00 {gateway} 00000400 00000001 00000000 {flags} {interface}\n")
        };
        for (line, has_default) in [
            (line("00", via, "00000003", "eth0"), true),
            (line("00", &none, "00200200", "lo"), false),
            (line("40", via, "00000003", "eth0"), false),
        ] {
            assert_eq!(has_default_v6(&line), has_default, "{line}");
        }
        let own = line("30", &none, "80200001", "lo").replacen(&none, "20010db8000000000000000000000000", 1);
        assert_eq!(local_v6(&own), ["2001:db8::/48".parse::<IpNet>().unwrap()]);
        assert!(local_v6(&line("00", via, "00000003", "eth0")).is_empty());
        assert!(!has_default_v4("") && !has_default_v6(""));
    }

    #[test]
    fn loopback_addresses_are_left_out() {
        assert!(read().unwrap().addresses.iter().all(|net| !net.addr().is_loopback()));
    }
}
