//! Messages between a network device and its resolver, each one packet.

use std::io::{self, ErrorKind};

use volt_policy::{Ask, HostNetwork, Name};

/// Bytes of the longest answer of a server that is passed on. Answers to questions of programs have some
/// hundred.
pub(crate) const LONGEST: usize = 16 << 10;
/// Bytes of the longest message of the resolver: the addresses of a host with some thousand.
pub(crate) const LONGEST_MESSAGE: usize = 128 << 10;
/// Bytes of a number, and of a type.
const NUMBER: usize = 4;
const KIND: usize = 2;
/// The number of a message that answers no question.
const NO_QUESTION: u32 = 0;
/// The first character of a text that tells a problem.
const PROBLEM: char = '!';
/// Words for the versions of IP that the host routes.
const ROUTES_V4: &str = "ipv4";
const ROUTES_V6: &str = "ipv6";

/// A message of the resolver.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FromResolver<'a> {
    /// The answer of a server to the question with this number, or `None` if none answered.
    Answer(u32, Option<&'a [u8]>),
    /// The network of the host.
    HostNetwork(HostNetwork),
    /// A problem, for the log. The resolver has none of its own.
    Problem(&'a str),
}

/// Encodes a question.
pub(crate) fn encode(ask: &Ask) -> Vec<u8> {
    [&ask.number.to_be_bytes()[..], &ask.kind.to_be_bytes(), ask.name.as_str().as_bytes()].concat()
}

/// Decodes a question.
pub(super) fn decode_ask(bytes: &[u8]) -> Option<Ask> {
    let (number, rest) = bytes.split_first_chunk::<NUMBER>()?;
    let (kind, name) = rest.split_first_chunk::<KIND>()?;
    let name = Name::parse(std::str::from_utf8(name).ok()?).ok()?;
    Some(Ask { number: u32::from_be_bytes(*number), kind: u16::from_be_bytes(*kind), name })
}

/// Encodes an answer.
pub(super) fn encode_answer(number: u32, message: Option<&[u8]>) -> Vec<u8> {
    let message = message.filter(|message| message.len() <= LONGEST).unwrap_or_default();
    [&number.to_be_bytes()[..], message].concat()
}

/// Encodes a problem.
pub(super) fn encode_problem(problem: &str) -> Vec<u8> {
    [&NO_QUESTION.to_be_bytes()[..], format!("{PROBLEM}{problem}").as_bytes()].concat()
}

/// Encodes the network of the host: words for the versions of IP that it routes, and its addresses. One with
/// too many addresses is a problem.
pub(super) fn encode_network(network: &HostNetwork) -> Vec<u8> {
    let HostNetwork { addresses, routes_v4, routes_v6 } = network;
    let routes = [(*routes_v4, ROUTES_V4), (*routes_v6, ROUTES_V6)];
    let routes = routes.into_iter().filter(|(routes, _)| *routes).map(|(_, word)| word.to_owned());
    let words: Vec<_> = routes.chain(addresses.iter().map(ToString::to_string)).collect();
    let message = [&NO_QUESTION.to_be_bytes()[..], words.join(" ").as_bytes()].concat();
    match message.len() {
        0..=LONGEST_MESSAGE => message,
        _ => encode_problem("this host has too many addresses to follow their changes"),
    }
}

/// Decodes a message of the resolver.
///
/// # Errors
/// It is none.
pub(crate) fn decode(bytes: &[u8]) -> io::Result<FromResolver<'_>> {
    let wrong = || io::Error::new(ErrorKind::InvalidData, "the resolver sent a message of no known form");
    let (number, rest) = bytes.split_first_chunk::<NUMBER>().ok_or_else(wrong)?;
    match u32::from_be_bytes(*number) {
        NO_QUESTION => {
            let text = std::str::from_utf8(rest).map_err(|_| wrong())?;
            if let Some(problem) = text.strip_prefix(PROBLEM) {
                return Ok(FromResolver::Problem(problem));
            }
            let is_route = |word: &&str| [ROUTES_V4, ROUTES_V6].contains(word);
            let has = |route: &str| text.split_whitespace().any(|word| word == route);
            let addresses = text.split_whitespace().filter(|word| !is_route(word)).map(str::parse);
            Ok(FromResolver::HostNetwork(HostNetwork {
                addresses: addresses.collect::<Result<_, _>>().map_err(|_| wrong())?,
                routes_v4: has(ROUTES_V4),
                routes_v6: has(ROUTES_V6),
            }))
        }
        number => Ok(FromResolver::Answer(number, (!rest.is_empty()).then_some(rest))),
    }
}
