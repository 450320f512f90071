//! Numbers of registers and leaves, written as hexadecimal text.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A number of 32 bits, read from hexadecimal (`0x10a`), binary (`0b1`) or decimal text and written as
/// hexadecimal text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number(pub u32);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl FromStr for Number {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, radix) = match (text.strip_prefix("0x"), text.strip_prefix("0b")) {
            (Some(digits), _) => (digits, 16),
            (None, Some(digits)) => (digits, 2),
            (None, None) => (text, 10),
        };
        let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_alphanumeric());
        let number = is_number.then(|| u32::from_str_radix(digits, radix).ok()).flatten();
        number.map(Self).ok_or_else(|| format!("{text:?} is no number of 32 bits, such as 0x7"))
    }
}

impl Serialize for Number {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_read_in_three_bases_and_written_in_one() {
        for text in ["0x10a", "0b100001010", "266"] {
            let number: Number = text.parse().unwrap();
            assert_eq!((number.0, number.to_string().as_str()), (0x10a, "0x10a"), "{text}");
        }
    }

    #[test]
    fn text_of_no_number_is_refused() {
        for text in ["", "0x", "0xg", "0b2", "-1", "+1", "0x+1", "0jj0", "0x100000000"] {
            let refused = text.parse::<Number>().unwrap_err();
            assert!(refused.contains("32 bits"), "{text}: {refused}");
        }
    }
}
