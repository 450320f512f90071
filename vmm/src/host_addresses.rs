//! Addresses of this host, in the network namespace of this process.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv6Addr};

use volt_policy::IpNet;

/// Routes of IPv4, as a trie. An address of the host is one with a route to itself.
const V4: &str = "/proc/self/net/fib_trie";
/// Addresses of IPv6. A kernel without IPv6 has no such file.
const V6: &str = "/proc/self/net/if_inet6";

/// Lists those other than loopback addresses, as networks: a route may give a host a whole one.
///
/// # Errors
/// `/proc` is not there.
pub(crate) fn list() -> io::Result<Vec<IpNet>> {
    let mut all = v4(&fs::read_to_string(V4)?);
    match fs::read_to_string(V6) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        read => all.extend(v6(&read?)),
    }
    all.retain(|net| !net.addr().is_loopback());
    all.sort_unstable();
    // Two tables of routes have each address.
    all.dedup();
    Ok(all)
}

fn v4(trie: &str) -> Vec<IpNet> {
    let (mut found, mut leaf) = (Vec::new(), None);
    for line in trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse::<IpAddr>().ok();
        } else if let Some(prefix) = line.strip_suffix(" host LOCAL").and_then(|line| line.strip_prefix('/'))
        {
            let prefix = prefix.parse().ok();
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
    fn loopback_addresses_are_left_out() {
        assert!(list().unwrap().iter().all(|net| !net.addr().is_loopback()));
    }
}
