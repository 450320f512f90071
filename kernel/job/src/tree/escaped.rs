//! Bytes as text of JSON.

use std::fmt::{self, Write as _};

use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, Serializer};

/// Bytes whose text has `%XX` for control characters, percent signs, and what is no UTF-8.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Escaped(pub(super) Vec<u8>);

impl fmt::Display for Escaped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = self;
        for chunk in bytes.utf8_chunks() {
            for letter in chunk.valid().chars() {
                if letter == '%' || letter.is_control() {
                    let mut bytes = [0; 4];
                    letter.encode_utf8(&mut bytes).bytes().try_for_each(|byte| write!(f, "%{byte:02X}"))?;
                } else {
                    f.write_char(letter)?;
                }
            }
            chunk.invalid().iter().try_for_each(|byte| write!(f, "%{byte:02X}"))?;
        }
        Ok(())
    }
}

impl Escaped {
    fn of_text(text: &str) -> Option<Self> {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let [first, after @ ..] = rest {
            rest = after;
            if *first != b'%' {
                bytes.push(*first);
                continue;
            }
            let (digits, after) = rest.split_at_checked(2)?;
            let high = char::from(digits[0]).to_digit(16)?;
            bytes.push((high * 16 + char::from(digits[1]).to_digit(16)?) as u8);
            rest = after;
        }
        Some(Self(bytes))
    }
}

impl Serialize for Escaped {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Escaped {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::of_text(&text).ok_or_else(|| {
            serde::de::Error::custom("a percent sign stands before other than two hexadecimal digits")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_survive_as_text_that_a_terminal_does_not_obey() {
        let bytes: Vec<u8> = (0..=255).collect();
        let text = Escaped(bytes.clone()).to_string();
        assert_eq!(Escaped::of_text(&text), Some(Escaped(bytes)));
        assert_eq!(Escaped("a b/é\n%\u{9b}m".into()).to_string(), "a b/é%0A%25%C2%9Bm");
        for wrong in ["%", "%4", "%4g", "%é"] {
            assert_eq!(Escaped::of_text(wrong), None, "{wrong}");
        }
    }
}
