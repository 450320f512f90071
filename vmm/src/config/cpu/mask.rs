//! Masks over the bits of a register, written as text: `0b`, then `0` or `1` for a bit that gets this value
//! and `x` for a bit that keeps its own, the highest bit first.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A mask over a register of `BITS` bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mask<const BITS: u32> {
    fixed: u64,
    value: u64,
}

/// A mask over one register of CPUID.
pub type Mask32 = Mask<32>;
/// A mask over an MSR.
pub type Mask64 = Mask<64>;

impl<const BITS: u32> Mask<BITS> {
    const ALL: u64 = u64::MAX >> (u64::BITS - BITS);

    /// Gives the bits of `fixed` the values that they have in `value`.
    #[must_use]
    pub const fn new(fixed: u64, value: u64) -> Self {
        let fixed = fixed & Self::ALL;
        Self { fixed, value: value & fixed }
    }

    /// The bits that get a value.
    #[must_use]
    pub const fn fixed(self) -> u64 {
        self.fixed
    }

    /// The bits that get the value 1.
    #[must_use]
    pub const fn value(self) -> u64 {
        self.value
    }

    /// Returns the register's value under the mask.
    #[must_use]
    pub const fn apply(self, register: u64) -> u64 {
        register & !self.fixed | self.value
    }

    /// Whether every bit keeps its own value.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.fixed == 0
    }
}

impl<const BITS: u32> fmt::Display for Mask<BITS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0b")?;
        (0..BITS).rev().try_for_each(|bit| {
            f.write_str(match (self.fixed >> bit & 1, self.value >> bit & 1) {
                (0, _) => "x",
                (_, 0) => "0",
                _ => "1",
            })
        })
    }
}

impl<const BITS: u32> FromStr for Mask<BITS> {
    type Err = String;

    /// Parses the text of a mask. `_` separates groups of bits. Bits before the first one are `x`.
    fn from_str(text: &str) -> Result<Self, String> {
        let refused = |problem: String| format!("bitmap {text:?} {problem}");
        let digits = text.strip_prefix("0b").unwrap_or(text);
        let (mut mask, mut len) = (Self::default(), 0);
        for digit in digits.chars().filter(|digit| *digit != '_') {
            if len == BITS {
                return Err(refused(format!("has more than {BITS} bits")));
            }
            let (fixed, value) = match digit {
                'x' => (0, 0),
                '0' => (1, 0),
                '1' => (1, 1),
                other => return Err(refused(format!("has {other:?}; write 0, 1 or x for each bit"))),
            };
            (mask.fixed, mask.value, len) = (mask.fixed << 1 | fixed, mask.value << 1 | value, len + 1);
        }
        match len {
            0 => Err(refused("is empty; write 0, 1 or x for each bit".to_owned())),
            _ => Ok(mask),
        }
    }
}

impl<const BITS: u32> Serialize for Mask<BITS> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, const BITS: u32> Deserialize<'de> for Mask<BITS> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #[test]
        fn mask_survives_its_text_and_changes_fixed_bits_alone(fixed: u64, value: u64, register: u64) {
            let mask = Mask64::new(fixed, value);
            prop_assert_eq!(mask.to_string().parse(), Ok(mask));
            prop_assert_eq!(mask.apply(register), register & !fixed | value & fixed);
        }
    }

    #[test]
    fn contracted_text_leaves_higher_bits_as_they_are() {
        let mask: Mask32 = "0b1_0x1".parse().unwrap();
        assert_eq!((mask.fixed(), mask.value()), (0b1101, 0b1001));
        assert_eq!(mask.to_string(), format!("0b{}10x1", "x".repeat(28)));
        assert_eq!("10x1".parse(), Ok(mask));
    }

    #[test]
    fn text_of_no_mask_is_refused() {
        for (text, words) in [
            ("", "empty"),
            ("0b", "empty"),
            ("0b__", "empty"),
            ("0b12", "'2'"),
            ("0bX", "'X'"),
            ("0xff", "'f'"),
            (&format!("0b{}", "0".repeat(33)), "more than 32 bits"),
        ] {
            let refused = text.parse::<Mask32>().unwrap_err();
            assert!(refused.contains(words) && refused.contains(text), "{text}: {refused}");
        }
        assert!(format!("0b{}", "1".repeat(64)).parse::<Mask64>().is_ok());
        assert!(format!("0b{}", "1".repeat(65)).parse::<Mask64>().unwrap_err().contains("64"));
    }
}
