//! One rule: its text form, and the packets and names that it is about.
//!
//! ```text
//!   [PROTOCOL:]TARGET[:PORTS]        tcp:example.org:443   10.1.0.0/16   udp:[2001:db8::/32]:53   *:8000-8100
//! ```

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::Error;
use crate::name::NamePattern;
use crate::ports::Ports;

/// A protocol above IP that a rule can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP, and ICMPv6 of IPv6.
    Icmp,
}

impl Protocol {
    const ALL: [(&str, Self); 3] = [("tcp", Self::Tcp), ("udp", Self::Udp), ("icmp", Self::Icmp)];

    /// Its name in a rule.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
        }
    }
}

/// The far side of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// `*`: any address.
    Any,
    /// A network of addresses, or one address.
    Net(IpNet),
    /// Names, and the addresses that they have.
    Names(NamePattern),
}

/// A rule: the packets and names that it is about. Its list says whether they are allowed or denied.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The protocol. Without one, the rule is about all of them.
    pub protocol: Option<Protocol>,
    /// The far side.
    pub target: Target,
    /// Its ports.
    pub ports: Ports,
}

impl Rule {
    /// Whether the rule is about a protocol and a port of the far side. ICMP has no port.
    #[must_use]
    pub fn is_about(&self, protocol: Protocol, port: u16) -> bool {
        let has_port = self.ports.is_any() || protocol != Protocol::Icmp && self.ports.has(port);
        self.protocol.is_none_or(|own| own == protocol) && has_port
    }

    /// Parses a rule. Returns the problem in words.
    fn parse(text: &str) -> Result<Self, String> {
        // An address of IPv6 has colons of its own.
        if let Some(net) = net_of(text) {
            return Ok(Self { protocol: None, target: Target::Net(net?), ports: Ports::ANY });
        }
        let of_protocol = Protocol::ALL
            .into_iter()
            .find_map(|(name, protocol)| Some((Some(protocol), text.strip_prefix(name)?.strip_prefix(':')?)));
        let (protocol, rest) = of_protocol.unwrap_or((None, text));
        let (target, ports) = split_ports(rest)?;
        let rule =
            Self { protocol, target: target_of(target)?, ports: ports.map_or(Ok(Ports::ANY), Ports::parse)? };
        rule.check().map(|()| rule)
    }

    /// Refuses a rule that can match nothing.
    fn check(&self) -> Result<(), String> {
        let is_of_names = matches!(self.target, Target::Names(_));
        match self.protocol {
            Some(Protocol::Icmp) if !self.ports.is_any() => Err("ICMP has no ports".to_owned()),
            Some(Protocol::Icmp) if is_of_names => {
                Err("names have rules for TCP and UDP; give the network for ICMP".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// Splits `TARGET:PORTS`, in which an IPv6 target with ports is in brackets.
fn split_ports(text: &str) -> Result<(&str, Option<&str>), String> {
    if let Some(rest) = text.strip_prefix('[') {
        let (target, after) = rest.split_once(']').ok_or("the bracket is not closed")?;
        return match after.strip_prefix(':') {
            Some(ports) => Ok((target, Some(ports))),
            None if after.is_empty() => Ok((target, None)),
            None => Err(format!("{after:?} follows the bracket; write :PORTS there")),
        };
    }
    if net_of(text).is_some() {
        return Ok((text, None));
    }
    match text.split_once(':') {
        Some((_, ports)) if ports.contains(':') => {
            Err("an IPv6 network with ports is written in brackets, as in [2001:db8::/32]:443".to_owned())
        }
        Some((target, ports)) => Ok((target, Some(ports))),
        None => Ok((text, None)),
    }
}

fn target_of(text: &str) -> Result<Target, String> {
    match text {
        "" => Err("it has no target; give a network, a name, or * for all".to_owned()),
        "*" => Ok(Target::Any),
        _ => match net_of(text) {
            Some(net) => net.map(Target::Net),
            None if text.contains('/') => Err(format!("{text:?} is no network; write one as 10.1.0.0/16")),
            None => NamePattern::parse(text).map(Target::Names),
        },
    }
}

/// The network or address that a text is, if it is one.
fn net_of(text: &str) -> Option<Result<IpNet, String>> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(Ok(address.into()));
    }
    let net: IpNet = text.parse().ok()?;
    Some(match net.trunc() {
        truncated if truncated == net => Ok(net),
        truncated => Err(format!("it has bits beyond its prefix; write {truncated}")),
    })
}

impl FromStr for Rule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text).map_err(|problem| Error::Rule { rule: text.to_owned(), problem })
    }
}

/// The text that is parsed to the same rule.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(protocol) = self.protocol {
            write!(f, "{}:", protocol.name())?;
        }
        let has_ports = !self.ports.is_any();
        match &self.target {
            Target::Any => f.write_str("*")?,
            Target::Names(names) => write!(f, "{names}")?,
            Target::Net(net) => {
                let is_bracketed = matches!(net, IpNet::V6(_)) && (has_ports || self.protocol.is_some());
                let [open, close] = if is_bracketed { ["[", "]"] } else { ["", ""] };
                match net.prefix_len() == net.max_prefix_len() {
                    true => write!(f, "{open}{}{close}", net.addr())?,
                    false => write!(f, "{open}{net}{close}")?,
                }
            }
        }
        if has_ports { write!(f, ":{}", self.ports) } else { Ok(()) }
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_is_written_as_it_is_read() {
        for (given, written) in [
            ("10.1.0.0/16", "10.1.0.0/16"),
            ("10.1.2.3", "10.1.2.3"),
            ("10.1.2.3/32", "10.1.2.3"),
            ("10.1.2.3:443", "10.1.2.3:443"),
            ("tcp:10.0.0.0/8:80,443", "tcp:10.0.0.0/8:80,443"),
            ("2001:db8::1", "2001:db8::1"),
            ("2001:DB8::/32", "2001:db8::/32"),
            ("[2001:db8::/32]:443", "[2001:db8::/32]:443"),
            ("udp:2001:db8::/32", "udp:[2001:db8::/32]"),
            ("udp:[2001:db8::1]:53", "udp:[2001:db8::1]:53"),
            ("icmp:192.0.2.0/24", "icmp:192.0.2.0/24"),
            ("Example.org", "example.org"),
            ("*.example.org:443", "*.example.org:443"),
            ("tcp:example.org:22,8000-8100", "tcp:example.org:22,8000-8100"),
            ("*", "*"),
            ("*:443", "*:443"),
            ("udp:*:443", "udp:*:443"),
            ("tcp.example.org", "tcp.example.org"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::/0", "::/0"),
        ] {
            let rule: Rule = given.parse().unwrap();
            assert_eq!(rule.to_string(), written, "{given}");
            assert_eq!(written.parse::<Rule>().unwrap(), rule, "{given}");
            let json = serde_json::to_string(&rule).unwrap();
            assert_eq!(serde_json::from_str::<Rule>(&json).unwrap(), rule);
        }
    }

    #[test]
    fn wrong_rule_is_refused_by_its_text_and_the_cure() {
        for (given, words) in [
            ("", "no target"),
            ("tcp:", "no target"),
            (":443", "no target"),
            ("10.1.2.3/16", "write 10.1.0.0/16"),
            ("2001:db8::1/32", "write 2001:db8::/32"),
            ("10.0.0.0/33", "no network"),
            ("10.0.0/8", "no network"),
            ("10.0.0.256", "does not end in a number"),
            ("2001:db8::1:443x", "in brackets"),
            ("[2001:db8::1", "not closed"),
            ("[2001:db8::1]443", "write :PORTS"),
            ("[example.org/8]:80", "no network"),
            ("example.org:https", "no port"),
            ("example.org:0", "1 to 65535"),
            ("example.org:443-80", "write 80-443"),
            ("icmp:10.0.0.0/8:80", "ICMP has no ports"),
            ("icmp:example.org", "give the network"),
            ("sctp:example.org", "no port"),
            ("https://example.org", "\"//example.org\" is no port"),
            ("a_b c", "letters, digits"),
        ] {
            let problem = given.parse::<Rule>().unwrap_err().to_string();
            assert!(problem.starts_with(&format!("rule {given:?}: ")), "{problem}");
            assert!(problem.contains(words), "{given:?}: {problem}");
        }
    }

    #[test]
    fn rule_is_about_its_protocol_and_ports() {
        for (rule, protocol, port, is_about) in [
            ("*", Protocol::Icmp, 0, true),
            ("*:443", Protocol::Tcp, 443, true),
            ("*:443", Protocol::Udp, 443, true),
            ("*:443", Protocol::Tcp, 80, false),
            ("*:443", Protocol::Icmp, 443, false),
            ("tcp:*", Protocol::Udp, 443, false),
            ("icmp:*", Protocol::Icmp, 0, true),
        ] {
            let parsed: Rule = rule.parse().unwrap();
            assert_eq!(parsed.is_about(protocol, port), is_about, "{rule} {protocol:?} {port}");
        }
    }
}
