//! Addresses of the cables between namespaces and the host: a pair of each version of IP for each number.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Network of the host's ends and the namespaces' ends, and the bits of its prefix.
pub(super) const IPV4: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 119, 0, 0), 16);
/// The same of IPv6: unique local addresses.
pub(super) const IPV6: (Ipv6Addr, u8) = (Ipv6Addr::new(0xfd76, 0x6f6c, 0x7401, 0, 0, 0, 0, 0), 64);
/// Bits of the prefix of a pair.
pub(super) const PAIR_V4: u8 = 31;
pub(super) const PAIR_V6: u8 = 127;
/// Pairs in the network of IPv4.
pub(super) const PAIRS: u32 = 1 << (PAIR_V4 - IPV4.1);
/// Start of the names of the host's ends. The number follows.
pub(super) const NAME: &str = "voltnat";

/// A cable, by its number below [`PAIRS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cable(pub u32);

/// The addresses of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

impl Cable {
    /// The name of the host's end. The kernel gives it to one interface of the host alone.
    pub fn name(self) -> String {
        format!("{NAME}{}", self.0)
    }

    /// The host's end.
    pub fn near(self) -> End {
        self.end(0)
    }

    /// The namespace's end.
    pub fn far(self) -> End {
        self.end(1)
    }

    fn end(self, side: u32) -> End {
        let offset = self.0 * 2 + side;
        End {
            v4: Ipv4Addr::from_bits(IPV4.0.to_bits() + offset),
            v6: Ipv6Addr::from_bits(IPV6.0.to_bits() + u128::from(offset)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cable_has_a_pair_of_the_range() {
        let (first, last) = (Cable(0), Cable(PAIRS - 1));
        assert_eq!((first.near().v4, first.far().v4), ([10, 119, 0, 0].into(), [10, 119, 0, 1].into()));
        assert_eq!(last.far().v4, Ipv4Addr::from([10, 119, 255, 255]));
        assert_eq!(last.far().v6, "fd76:6f6c:7401::ffff".parse::<Ipv6Addr>().unwrap());
        assert!(last.name().len() < libc::IFNAMSIZ);
    }

    #[test]
    fn range_and_the_guests_network_have_no_address_in_common() {
        // Those of `config/user_network.rs`.
        assert_ne!([10, 118], IPV4.0.octets()[..2]);
        assert_ne!([0xfd76, 0x6f6c, 0x7400, 0], IPV6.0.segments()[..4]);
    }
}
