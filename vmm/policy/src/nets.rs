//! A set of networks, in which those that have an address are found by a look at each length of a prefix.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;

/// Numbers that networks of one family have.
type Family = Vec<(u8, HashMap<u128, Vec<usize>>)>;

/// Networks, each with a number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nets {
    /// Longest prefix first.
    v4: Family,
    v6: Family,
}

impl Nets {
    /// Adds a network with a number.
    pub fn add(&mut self, net: IpNet, number: usize) {
        let family = match net {
            IpNet::V4(_) => &mut self.v4,
            IpNet::V6(_) => &mut self.v6,
        };
        let prefix = net.prefix_len();
        let at = family.partition_point(|(other, _)| *other > prefix);
        if family.get(at).is_none_or(|(other, _)| *other != prefix) {
            family.insert(at, (prefix, HashMap::new()));
        }
        family[at].1.entry(bits(net.network())).or_default().push(number);
    }

    /// The numbers of the networks that have an address, those of the smallest networks first.
    pub fn with(&self, address: IpAddr) -> impl Iterator<Item = usize> {
        let (family, len) = match address {
            IpAddr::V4(_) => (&self.v4, 32),
            IpAddr::V6(_) => (&self.v6, 128),
        };
        let address = bits(address);
        let masked = move |prefix: u8| address & u128::MAX.checked_shl(len - u32::from(prefix)).unwrap_or(0);
        let found = family.iter().filter_map(move |(prefix, nets)| nets.get(&masked(*prefix)));
        found.flatten().copied()
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn smaller_networks_are_found_first() {
        let mut nets = Nets::default();
        let all =
            ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "10.1.0.0/16", "::/0", "2001:db8::/32"];
        for (number, net) in all.into_iter().enumerate() {
            nets.add(net.parse().unwrap(), number);
        }
        let found = |address: &str| nets.with(address.parse().unwrap()).collect::<Vec<_>>();
        assert_eq!(found("10.1.2.3"), [3, 2, 4, 1, 0]);
        assert_eq!(found("10.2.0.0"), [1, 0]);
        assert_eq!(found("11.0.0.0"), [0]);
        assert_eq!(found("2001:db8::1"), [6, 5]);
        assert_eq!(found("::"), [5]);
    }

    fn net() -> impl Strategy<Value = IpNet> {
        let v4 = (0..4_u32, 0..=32_u8).prop_map(|(bits, prefix)| {
            IpNet::new(Ipv4Addr::from_bits(bits << 30 | bits).into(), prefix).unwrap().trunc()
        });
        let v6 = (0..4_u128, 0..=128_u8).prop_map(|(bits, prefix)| {
            IpNet::new(Ipv6Addr::from_bits(bits << 126 | bits).into(), prefix).unwrap().trunc()
        });
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn networks_of_an_address_are_those_that_contain_it(
            all in prop::collection::vec(net(), 0..40), address in net()
        ) {
            let mut nets = Nets::default();
            all.iter().enumerate().for_each(|(number, net)| nets.add(*net, number));
            let address = address.addr();
            let mut found: Vec<_> = nets.with(address).collect();
            found.sort_unstable();
            let expected: Vec<_> = (0..all.len()).filter(|number| all[*number].contains(&address)).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
