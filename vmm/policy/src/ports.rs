//! Ports of a rule.

use std::fmt;

/// Most ranges of a rule.
const MOST_RANGES: usize = 64;

/// Ranges of ports, sorted and apart from each other. An empty list means any port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ports(Vec<(u16, u16)>);

impl Ports {
    /// Any port.
    pub const ANY: Self = Self(Vec::new());

    /// Parses a list such as `443` or `80,8000-8100`.
    ///
    /// # Errors
    /// The problem, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut ranges = text.split(',').map(range).collect::<Result<Vec<_>, _>>()?;
        ranges.sort_unstable();
        let mut joined: Vec<(u16, u16)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match joined.last_mut() {
                Some(before) if u32::from(first) <= u32::from(before.1) + 1 => before.1 = before.1.max(last),
                _ => joined.push((first, last)),
            }
        }
        if joined.len() > MOST_RANGES {
            return Err(format!("a rule has at most {MOST_RANGES} ranges of ports; write another one"));
        }
        Ok(Self(joined))
    }

    /// Whether a port is among them.
    #[must_use]
    pub fn has(&self, port: u16) -> bool {
        let before = self.0.partition_point(|&(_, last)| last < port);
        self.is_any() || self.0.get(before).is_some_and(|&(first, _)| first <= port)
    }

    /// Whether all ports are.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.0.is_empty()
    }
}

fn range(text: &str) -> Result<(u16, u16), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| match text.parse() {
        Ok(port @ 1..) if text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(port),
        _ => Err(format!("{text:?} is no port; give 1 to 65535, a range such as 8000-8100, or a list")),
    };
    match (port(first)?, port(last)?) {
        (first, last) if first <= last => Ok((first, last)),
        (first, last) => Err(format!("the range {first}-{last} is empty; write {last}-{first}")),
    }
}

/// The list as it is parsed.
impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (first, last)) in self.0.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_is_sorted_and_joined() {
        for (given, written) in [
            ("443", "443"),
            ("443,80", "80,443"),
            ("80-90,85-100,101", "80-101"),
            ("1-65535", "1-65535"),
            ("65535,65534", "65534-65535"),
            ("7,7", "7"),
        ] {
            assert_eq!(Ports::parse(given).unwrap().to_string(), written, "{given}");
        }
    }

    #[test]
    fn port_of_a_range_is_among_them() {
        let ports = Ports::parse("22,8000-8100").unwrap();
        for (port, is_there) in
            [(22, true), (23, false), (8000, true), (8100, true), (8101, false), (0, false)]
        {
            assert_eq!(ports.has(port), is_there, "{port}");
        }
        assert!(Ports::ANY.has(0) && Ports::ANY.has(65_535));
    }

    #[test]
    fn wrong_list_is_refused_with_the_cure() {
        for (given, words) in [
            ("", "no port"),
            ("0", "1 to 65535"),
            ("65536", "1 to 65535"),
            ("+80", "no port"),
            ("80,", "no port"),
            ("http", "\"http\" is no port"),
            ("90-80", "write 80-90"),
            ("1-2-3", "\"2-3\" is no port"),
            (&(1..=65).map(|port| (2 * port).to_string()).collect::<Vec<_>>().join(","), "at most 64 ranges"),
        ] {
            let problem = Ports::parse(given).unwrap_err();
            assert!(problem.contains(words), "{given:?}: {problem}");
        }
    }
}
