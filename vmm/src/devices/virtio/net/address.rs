//! Ethernet addresses, from the configuration or derived from the device's id.

use crate::error::{Error, Result};

/// An Ethernet address.
pub(super) type Mac = [u8; 6];

/// Parses an address.
///
/// # Errors
/// `text` is not an address, or not one that a single interface can have.
pub(super) fn parse(text: &str) -> Result<Mac> {
    let refused = |problem: &str| {
        Err(Error::config("networks", format!("mac {text:?}: {problem}, such as 02:00:00:00:00:01")))
    };
    let mut mac = Mac::default();
    let mut parts = text.split(':');
    for byte in &mut mac {
        let digits =
            parts.next().filter(|part| part.len() == 2 && part.chars().all(|c| c.is_ascii_hexdigit()));
        let Some(digits) = digits else { return refused("not six bytes in hexadecimal") };
        *byte = u8::from_str_radix(digits, 16).expect("two hexadecimal digits");
    }
    if parts.next().is_some() {
        return refused("not six bytes in hexadecimal");
    }
    if mac[0] & 1 != 0 || mac == Mac::default() {
        return refused("not the address of one interface");
    }
    Ok(mac)
}

/// Derives an address from an id: always the same one, locally administered, unicast.
pub(super) fn from_id(id: &str) -> Mac {
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
    fn valid_addresses_are_parsed_and_others_refused() {
        assert_eq!(parse("02:00:5e:10:0A:ff").unwrap(), [2, 0, 0x5e, 0x10, 0x0a, 0xff]);
        for wrong in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "2:0:0:0:0:1",
            "02-00-00-00-00-01",
            "+2:00:00:00:00:01",
        ] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.contains("six bytes"), "{error}");
        }
        for wrong in ["01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00"] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.contains("one interface"), "{error}");
        }
    }

    #[test]
    fn derived_address_depends_only_on_the_id() {
        assert_eq!(from_id("eth0"), from_id("eth0"));
        assert_ne!(from_id("eth0"), from_id("eth1"));
        for id in ["", "a", "eth0", "a-long-name-of-an-interface"] {
            assert_eq!(from_id(id)[0] & 3, 2, "locally administered and unicast");
        }
    }
}
