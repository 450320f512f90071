//! Names of hosts, and patterns of them (RFC 1035, section 2.3; RFC 5890 for names that are not ASCII).

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest name, without the last dot, and longest label (RFC 1035, section 2.3.4).
const LONGEST: usize = 253;
const LONGEST_LABEL: usize = 63;

/// A name in lower case, without a dot at its end.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(String);

impl Name {
    /// Parses a name as a guest or a user writes it. An address is none.
    ///
    /// # Errors
    /// The problem, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let name = text.strip_suffix('.').unwrap_or(text);
        if !name.is_ascii() {
            return Err("a name is ASCII here; write its xn-- form".to_owned());
        }
        if name.is_empty() || name.len() > LONGEST {
            return Err(format!("a name has 1 to {LONGEST} characters"));
        }
        name.split('.').try_for_each(check_label)?;
        let name = name.to_ascii_lowercase();
        let last = name.rsplit('.').next().unwrap_or_default();
        // A resolver would take 10.1 or 0x7f for an address.
        if last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x") {
            return Err("a name does not end in a number; an IPv4 address has four of them".to_owned());
        }
        Ok(Self(name))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name, and the names above it: `a.b.c`, `b.c`, `c`.
    pub fn with_parents(&self) -> impl Iterator<Item = &str> {
        let after = self.0.match_indices('.').map(|(at, _)| &self.0[at + 1..]);
        std::iter::once(&self.0[..]).chain(after)
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(|problem| serde::de::Error::custom(format!("{text:?}: {problem}")))
    }
}

/// A name hashes and compares as its text.
impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Names of services have underscores.
fn check_label(label: &str) -> Result<(), String> {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    match label {
        "" => Err("a name has no empty part between two dots".to_owned()),
        _ if label.len() > LONGEST_LABEL => {
            Err(format!("a part of a name has at most {LONGEST_LABEL} characters"))
        }
        _ if label.starts_with('-') || label.ends_with('-') => {
            Err("no part of a name begins or ends with a hyphen".to_owned())
        }
        _ if !label.bytes().all(is_known) => {
            Err("a name has letters, digits, hyphens, underscores and dots".to_owned())
        }
        _ => Ok(()),
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One name, or all names below one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NamePattern {
    /// This name alone.
    Exact(Name),
    /// `*.example.org`: all names below `example.org`, at any depth, but not that one.
    Below(Name),
}

impl NamePattern {
    /// Parses a name or `*.` and a name.
    ///
    /// # Errors
    /// The problem, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let below = text.strip_prefix("*.");
        if below.unwrap_or(text).contains('*') {
            return Err("* stands for whole parts at the front alone, as in *.example.org".to_owned());
        }
        match below {
            Some(name) => Name::parse(name).map(Self::Below),
            None => Name::parse(text).map(Self::Exact),
        }
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => write!(f, "{name}"),
            Self::Below(name) => write!(f, "*.{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_without_case_and_the_last_dot() {
        assert_eq!(Name::parse("WWW.Example.ORG."), Name::parse("www.example.org"));
        assert_eq!(Name::parse("_acme-challenge.x").unwrap().as_str(), "_acme-challenge.x");
        let name = Name::parse("a.b.c").unwrap();
        assert_eq!(name.with_parents().collect::<Vec<_>>(), ["a.b.c", "b.c", "c"]);
    }

    #[test]
    fn odd_names_are_refused_with_the_reason() {
        let long = ["a"; 128].join(".");
        let label = "a".repeat(64);
        for (name, words) in [
            ("", "1 to 253"),
            (".", "1 to 253"),
            ("a..b", "empty part"),
            (".a", "empty part"),
            ("a b", "letters, digits"),
            ("a\0b", "letters, digits"),
            ("a/b", "letters, digits"),
            ("-a.org", "hyphen"),
            ("a-.org", "hyphen"),
            ("b\u{fc}cher.example", "xn--"),
            ("127.1", "number"),
            ("1.2.3.4", "number"),
            ("0x7f", "number"),
            ("0X7f", "number"),
            ("*", "* stands for"),
            ("a.*.org", "* stands for"),
            ("*a.org", "* stands for"),
            ("*.*.org", "* stands for"),
            (&long, "1 to 253"),
            (&label, "at most 63"),
        ] {
            let problem = NamePattern::parse(name).unwrap_err();
            assert!(problem.contains(words), "{name:?}: {problem}");
        }
    }
}
