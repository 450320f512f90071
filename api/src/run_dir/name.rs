//! Names of VMs and of snapshots: the rule for a given one, and made-up ones.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use volt_vmm::internal::random_hex;

/// Longest name, in bytes. A directory of the name must leave room for sockets (107 bytes in all).
const LONGEST: usize = 48;

const ADJECTIVES: [&str; 32] = [
    "agile", "amber", "brave", "brisk", "calm", "clear", "crisp", "eager", "early", "fair", "fast", "firm",
    "fresh", "gentle", "glad", "grand", "keen", "kind", "light", "lucid", "mellow", "merry", "neat", "noble",
    "proud", "quick", "quiet", "ready", "sharp", "solid", "swift", "warm",
];
const NOUNS: [&str; 32] = [
    "ampere", "anode", "arc", "bolt", "cable", "cell", "charge", "coil", "current", "diode", "dynamo",
    "farad", "field", "flux", "fuse", "gauss", "grid", "henry", "joule", "kelvin", "magnet", "ohm", "phase",
    "pulse", "relay", "signal", "spark", "switch", "tesla", "volt", "watt", "wave",
];

/// A name that is one component of a path and begins no option: letters, digits, `_` and `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct VmName(String);

impl VmName {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Makes up a name, which may be taken.
    ///
    /// # Errors
    /// The host has no random bytes.
    pub(crate) fn made_up() -> volt_vmm::Result<Self> {
        Ok(Self::of_number(u32::from_str_radix(&random_hex()?[..8], 16).unwrap_or_default()))
    }

    /// The number chooses an adjective, a noun and two digits.
    fn of_number(number: u32) -> Self {
        let [adjective, noun] = [number, number >> 5].map(|number| number as usize % 32);
        Self(format!("{}-{}-{:02}", ADJECTIVES[adjective], NOUNS[noun], (number >> 10) % 100))
    }

    /// The name of number `number` of several.
    ///
    /// # Errors
    /// It is too long.
    pub(crate) fn numbered(&self, number: usize) -> Result<Self, String> {
        format!("{self}-{number}").parse()
    }

    /// As [`Self::numbered`], with as much of this name as leaves room for the number.
    pub(crate) fn shortened_and_numbered(&self, number: usize) -> Self {
        let number = format!("-{number}");
        let kept = self.0.len().min(LONGEST.saturating_sub(number.len()));
        Self(format!("{}{number}", &self.0[..kept]))
    }
}

impl FromStr for VmName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let problem = match text.chars().next() {
            None => "a name has at least one character",
            Some(_) if text.len() > LONGEST => "a name has at most 48 bytes",
            Some(first) if !first.is_ascii_alphanumeric() => "a name begins with a letter or a digit",
            _ if !text.chars().all(allowed) => "a name has only letters, digits, `_` and `-`",
            _ => return Ok(Self(text.to_owned())),
        };
        Err(problem.to_owned())
    }
}

impl TryFrom<String> for VmName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<VmName> for String {
    fn from(name: VmName) -> Self {
        name.0
    }
}

impl fmt::Display for VmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_that_could_leave_its_directory_is_refused() {
        for (text, words) in [
            ("", "at least one"),
            (&"x".repeat(300), "at most 48"),
            (&"x".repeat(49), "at most 48"),
            (".", "begins with"),
            ("..", "begins with"),
            ("-web", "begins with"),
            ("_web", "begins with"),
            ("a/b", "only letters"),
            ("a.b", "only letters"),
            ("a\nb", "only letters"),
            ("a\0b", "only letters"),
            ("a b", "only letters"),
            ("wéb", "only letters"),
            ("\x1b[2J", "begins with"),
        ] {
            let error = text.parse::<VmName>().unwrap_err();
            assert!(error.contains(words), "{text:?}: {error}");
        }
        for text in ["web", "7", "Web_1-x", "group-web", &"x".repeat(48)] {
            assert_eq!(text.parse::<VmName>().unwrap().as_str(), text);
        }
    }

    #[test]
    fn made_up_names_are_valid_and_differ() {
        for number in [0, 1, 31, 32, 1 << 10, 0x1234_5678, u32::MAX] {
            let name = VmName::of_number(number);
            assert_eq!(name.as_str().parse::<VmName>().unwrap(), name);
        }
        assert_eq!(VmName::of_number(0).as_str(), "agile-ampere-00");
        assert_ne!(VmName::of_number(1), VmName::of_number(32));
        VmName::made_up().unwrap();
    }

    #[test]
    fn numbered_name_may_be_too_long() {
        assert_eq!("web".parse::<VmName>().unwrap().numbered(12).unwrap().as_str(), "web-12");
        let long = "x".repeat(48).parse::<VmName>().unwrap();
        assert!(long.numbered(1).is_err());
        for (number, kept) in [(1, 46), (10, 45), (99_999, 42)] {
            let short = long.shortened_and_numbered(number);
            assert_eq!(short.as_str(), format!("{}-{number}", "x".repeat(kept)));
            assert_eq!(short.as_str().parse::<VmName>().unwrap(), short);
        }
        assert_eq!("web".parse::<VmName>().unwrap().shortened_and_numbered(2).as_str(), "web-2");
    }
}
