//! Ethernet addresses derived from the device's id.

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Derives an address from an id: always the same one, locally administered, unicast.
pub(crate) fn from_id(id: &str) -> Mac {
    // FNV-1a
    let hash = id
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let [a, b, c, d, e, f, g, h] = hash.to_le_bytes();
    [(a ^ g) & 0xfc | 2, b ^ h, c, d, e, f]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_address_depends_only_on_the_id() {
        assert_eq!(from_id("eth0"), from_id("eth0"));
        assert_ne!(from_id("eth0"), from_id("eth1"));
        for id in ["", "a", "eth0", "a-long-name-of-an-interface"] {
            assert_eq!(from_id(id)[0] & 3, 2, "locally administered and unicast");
        }
    }
}
