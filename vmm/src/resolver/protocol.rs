//! Messages between a network device and its resolver, each one packet.

use std::io::{self, ErrorKind};

use volt_policy::{Ask, IpNet, Name};

/// Bytes of the longest answer of a server that is passed on. Answers to questions of programs have some
/// hundred.
pub(crate) const LONGEST: usize = 16 << 10;
/// Bytes of a number, and of a type.
const NUMBER: usize = 4;
const KIND: usize = 2;
/// The number of a message that answers no question.
const NO_QUESTION: u32 = 0;

/// A message of the resolver.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FromResolver<'a> {
    /// The answer of a server to the question with this number, or `None` if none answered.
    Answer(u32, Option<&'a [u8]>),
    /// The addresses of the host.
    HostAddresses(Vec<IpNet>),
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

/// Encodes the addresses of the host.
pub(super) fn encode_addresses(addresses: &[IpNet]) -> Vec<u8> {
    let text: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    [&NO_QUESTION.to_be_bytes()[..], text.join(" ").as_bytes()].concat()
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
            let addresses = text.split_whitespace().map(str::parse).collect::<Result<_, _>>();
            Ok(FromResolver::HostAddresses(addresses.map_err(|_| wrong())?))
        }
        number => Ok(FromResolver::Answer(number, (!rest.is_empty()).then_some(rest))),
    }
}
