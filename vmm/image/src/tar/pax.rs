//! Records of a PAX header: `LENGTH KEY=VALUE\n` each (pax in POSIX.1-2017).
//!
//! A value may have any bytes, newlines too: file capabilities do. The crate `tar` cuts records at newlines,
//! and so loses these and what follows them.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::Malformed;
use crate::tree::Time;

/// Records by key. All values of a key that comes twice are kept, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Records(BTreeMap<Vec<u8>, Vec<Vec<u8>>>);

impl Records {
    /// Parses the content of a header.
    pub(super) fn parse(mut bytes: &[u8]) -> Result<Self, Malformed> {
        let mut records = Self::default();
        while !bytes.is_empty() {
            let (record, rest) = split(bytes).ok_or(Malformed("a PAX record has a wrong length"))?;
            let equals = record.iter().position(|byte| *byte == b'=');
            let equals = equals.ok_or(Malformed("a PAX record has no value"))?;
            let (key, value) = (record[..equals].to_vec(), record[equals + 1..].to_vec());
            records.0.entry(key).or_default().push(value);
            bytes = rest;
        }
        Ok(records)
    }

    /// Adds the records of `over`, which replace those of the same keys.
    pub(super) fn overlaid(mut self, over: Self) -> Self {
        self.0.extend(over.0);
        self
    }

    /// The last value of a key; an empty one takes the key away.
    pub(super) fn get(&self, key: &str) -> Option<&[u8]> {
        self.0.get(key.as_bytes())?.last().map(Vec::as_slice).filter(|value| !value.is_empty())
    }

    /// All values of a key.
    pub(super) fn all(&self, key: &str) -> impl Iterator<Item = &[u8]> {
        self.0.get(key.as_bytes()).into_iter().flatten().map(Vec::as_slice)
    }

    /// A decimal number.
    pub(super) fn number<T: FromStr>(&self, key: &'static str) -> Result<Option<T>, Malformed> {
        let parse = |value| decimal(value).ok_or(Malformed("a PAX record is no number"));
        self.get(key).map(parse).transpose()
    }

    /// Seconds with a fraction.
    pub(super) fn time(&self, key: &str) -> Result<Option<Time>, Malformed> {
        self.get(key).map(|value| time(value).ok_or(Malformed("a PAX record is no time"))).transpose()
    }

    /// Values of keys that begin so, by the rest of the key.
    pub(super) fn beginning(&self, with: &str) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.iter().filter_map(move |(key, values)| {
            Some((key.strip_prefix(with.as_bytes())?, values.last()?.as_slice()))
        })
    }
}

/// Splits the first record, without its length and its newline, from the rest.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let digits = bytes.iter().take(20).position(|byte| *byte == b' ')?;
    let len: usize = decimal(&bytes[..digits])?;
    let (record, rest) = bytes.split_at_checked(len)?;
    Some((record.strip_suffix(b"\n")?.get(digits + 1..)?, rest))
}

pub(super) fn decimal<T: FromStr>(text: &[u8]) -> Option<T> {
    // FromStr takes a plus sign too.
    let is_plain = text.iter().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}

/// Parses `[-]SECONDS[.FRACTION]`. Digits beyond nanoseconds are cut towards the past.
fn time(text: &[u8]) -> Option<Time> {
    let (is_negative, text) = text.strip_prefix(b"-").map_or((false, text), |rest| (true, rest));
    let dot = text.iter().position(|byte| *byte == b'.').unwrap_or(text.len());
    let fraction = text.get(dot + 1..).unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let mut digits = fraction.iter().chain(std::iter::repeat(&b'0'));
    let nanoseconds = digits.by_ref().take(9).fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    let has_more = fraction.iter().skip(9).any(|digit| *digit != b'0');
    let seconds: i64 = decimal(&text[..dot])?;
    Some(match (is_negative, nanoseconds + u32::from(is_negative && has_more)) {
        (false, nanoseconds) => Time { seconds, nanoseconds },
        (true, 0) => Time { seconds: -seconds, nanoseconds: 0 },
        (true, nanoseconds) => Time { seconds: -seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_may_have_newlines_and_zeros() {
        let records = Records::parse(b"12 a=b\n\0c\nd\n9 path=x\n").unwrap();
        assert_eq!((records.get("a"), records.get("path")), (Some(&b"b\n\0c\nd"[..]), Some(&b"x"[..])));
    }

    #[test]
    fn malformed_records_are_refused() {
        for bytes in
            ["5 a=b\n", "7 a=b\n", "x a=b\n", "6 ab\n", "99999999999999999999999 a=b\n", "0 ", "6 a=b!"]
        {
            assert!(Records::parse(bytes.as_bytes()).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn times_have_nanoseconds_on_both_sides_of_1970() {
        let at = |seconds, nanoseconds| Some(Time { seconds, nanoseconds });
        for (text, expected) in [
            ("0", at(0, 0)),
            ("1.5", at(1, 500_000_000)),
            ("1.", at(1, 0)),
            ("1.1234567899", at(1, 123_456_789)),
            ("-1", at(-1, 0)),
            ("-1.25", at(-2, 750_000_000)),
            ("-0.0000000001", at(-1, 999_999_999)),
            ("+1", None),
            ("1.x", None),
            ("", None),
            (".5", None),
        ] {
            assert_eq!(time(text.as_bytes()), expected, "{text}");
        }
    }
}
