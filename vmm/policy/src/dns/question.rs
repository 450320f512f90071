//! A guest's question, and answers that have no records.

use std::str::FromStr;

use domain::base::iana::{Class, Opcode, Rcode, Rtype};
use domain::base::message_builder::{AdditionalBuilder, AnswerBuilder};
use domain::base::{Message, MessageBuilder, Name as WireName, StaticCompressor, ToName};

use crate::name::Name;

/// Longest answer over UDP to a guest that names no length.
const LEAST_UDP: u16 = 512;
/// Longest answer over UDP. A longer one could need fragments (RFC 6891, section 6.2.5; dnsflagday.net/2020).
pub const MOST_UDP: u16 = 1232;
/// Bytes of a header.
const HEADER: usize = 12;

/// A message under construction. Names in it are compressed.
pub(super) type Target = StaticCompressor<Vec<u8>>;

/// A question.
#[derive(Clone, Debug)]
pub(super) struct Question {
    id: u16,
    wants_recursion: bool,
    /// The longest answer over UDP, if the guest knows EDNS.
    edns: Option<u16>,
    /// The name as the guest wrote it.
    pub wire: WireName<Vec<u8>>,
    /// The type of records.
    pub kind: Rtype,
    /// The name, unless no host can have it.
    pub name: Option<Name>,
}

/// The reading of a message.
#[derive(Debug)]
pub(super) enum Reading {
    Question(Question),
    /// It is no question that has an answer. This message says so.
    Refused(Vec<u8>),
    /// It is no question at all.
    Nothing,
}

/// Reads a message of a guest.
pub(super) fn read(bytes: &[u8]) -> Reading {
    let Ok(message) = Message::from_octets(bytes) else { return Reading::Nothing };
    let header = message.header();
    if header.qr() {
        return Reading::Nothing;
    }
    if header.opcode() != Opcode::QUERY {
        return Reading::Refused(refusal(bytes, Rcode::NOTIMP));
    }
    let Ok(question) = message.sole_question() else {
        return Reading::Refused(refusal(bytes, Rcode::FORMERR));
    };
    if question.qclass() != Class::IN {
        return Reading::Refused(refusal(bytes, Rcode::REFUSED));
    }
    let wire: WireName<Vec<u8>> = question.qname().to_name();
    let edns = message.opt().map(|opt| opt.udp_payload_size().clamp(LEAST_UDP, MOST_UDP));
    Reading::Question(Question {
        id: header.id(),
        wants_recursion: header.rd(),
        edns,
        name: Name::parse(&wire.to_string()).ok(),
        wire,
        kind: question.qtype(),
    })
}

/// An answer to a message whose question cannot be used: its header alone.
fn refusal(bytes: &[u8], rcode: Rcode) -> Vec<u8> {
    let mut message = vec![0; HEADER];
    message[..2].copy_from_slice(&bytes[..2]);
    // The operation and the wish for recursion stay; this is an answer.
    message[2] = bytes[2] & 0x79 | 0x80;
    message[3] = 0x80 | rcode.to_int();
    message
}

impl Question {
    /// A question that no guest asked. `None` if the name has no form on the wire.
    pub fn about(name: &Name, kind: Rtype) -> Option<Self> {
        let wire = WireName::from_str(name.as_str()).ok()?;
        Some(Self { id: 0, wants_recursion: true, edns: None, wire, kind, name: Some(name.clone()) })
    }

    /// Bytes of the longest answer over UDP.
    pub fn longest(&self) -> usize {
        usize::from(self.edns.unwrap_or(LEAST_UDP))
    }

    /// The beginning of an answer: the question is in it.
    pub fn begin(&self, rcode: Rcode) -> AnswerBuilder<Target> {
        let mut message = builder();
        let header = message.header_mut();
        header.set_id(self.id);
        header.set_qr(true);
        header.set_opcode(Opcode::QUERY);
        header.set_rd(self.wants_recursion);
        header.set_ra(true);
        header.set_rcode(rcode);
        let mut question = message.question();
        // A question always fits a message without a limit.
        let _ = question.push((&self.wire, self.kind));
        question.answer()
    }

    /// The end of an answer.
    pub fn end(&self, answer: AnswerBuilder<Target>) -> Vec<u8> {
        let mut additional: AdditionalBuilder<Target> = answer.additional();
        if self.edns.is_some() {
            let _ = additional.opt(|opt| {
                opt.set_udp_payload_size(MOST_UDP);
                Ok(())
            });
        }
        additional.finish().into_target()
    }

    /// An answer without records.
    pub fn empty(&self, rcode: Rcode) -> Vec<u8> {
        self.end(self.begin(rcode))
    }

    /// An answer that says that the whole one has to be asked for over TCP.
    pub fn truncated(&self) -> Vec<u8> {
        let mut answer = self.begin(Rcode::NOERROR);
        answer.header_mut().set_tc(true);
        self.end(answer)
    }
}

/// A message without content.
fn builder() -> MessageBuilder<Target> {
    match MessageBuilder::from_target(StaticCompressor::new(Vec::new())) {
        Ok(builder) => builder,
        Err(never) => match never {},
    }
}

#[cfg(test)]
pub(super) use tests::question;

#[cfg(test)]
mod tests {
    use super::*;

    /// A question for a name, whose labels are given, with this EDNS length.
    pub(crate) fn question(labels: &[&[u8]], kind: u16, edns: Option<u16>) -> Vec<u8> {
        let mut bytes = vec![0x12, 0x34, 1, 0x20, 0, 1, 0, 0, 0, 0, 0, u8::from(edns.is_some())];
        for label in labels {
            bytes.push(label.len() as u8);
            bytes.extend_from_slice(label);
        }
        bytes.push(0);
        bytes.extend(kind.to_be_bytes());
        bytes.extend([0, 1]);
        if let Some(length) = edns {
            bytes.extend([0, 0, 41]);
            bytes.extend(length.to_be_bytes());
            bytes.extend([0; 6]);
        }
        bytes
    }

    fn read_question(bytes: &[u8]) -> Question {
        match read(bytes) {
            Reading::Question(question) => question,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn name_type_and_length_are_read() {
        for (edns, longest) in [(None, 512), (Some(0), 512), (Some(900), 900), (Some(4096), 1232)] {
            let read = read_question(&question(&[b"WWW", b"Example", b"org"], 28, edns));
            assert_eq!((read.kind, read.longest()), (Rtype::AAAA, longest));
            assert_eq!(read.name, Some(Name::parse("www.example.org").unwrap()));
        }
    }

    #[test]
    fn answer_repeats_the_question_as_it_was_written() {
        let asked = question(&[b"ExAmPle", b"org"], 1, Some(1400));
        let read = read_question(&asked);
        let empty = read.empty(Rcode::NXDOMAIN);
        assert_eq!(&empty[..4], [0x12, 0x34, 0x81, 0x83]);
        assert_eq!(empty[12..][..17], asked[12..][..17]);
        assert_eq!(empty[29..], [0, 0, 41, 0x04, 0xd0, 0, 0, 0, 0, 0, 0], "EDNS with our own length");
        let truncated = read.truncated();
        assert_eq!(truncated[2..4], [0x83, 0x80]);
        let without = read_question(&question(&[b"example", b"org"], 1, None)).empty(Rcode::NOERROR);
        assert_eq!((without.len(), &without[10..12]), (29, &[0, 0][..]));
    }

    #[test]
    fn odd_names_are_read_and_belong_to_no_host() {
        for labels in [&[][..], &[b"a b".as_slice(), b"org"], &[b"a.b", b"org"], &[b"\0"], &[b"\xff\xfe"]] {
            let read = read_question(&question(labels, 1, None));
            assert_eq!(read.name, None, "{labels:?}");
            assert_eq!(read.empty(Rcode::NXDOMAIN)[3], 0x83);
        }
    }

    #[test]
    fn what_is_no_question_is_refused_or_ignored() {
        let good = question(&[b"a"], 1, None);
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        for (bytes, rcode) in [
            (with(2, 0x28), 4),                 // an update
            (with(5, 2), 1),                    // two questions
            (with(5, 0), 1),                    // none
            (with(good.len() - 1, 3), 5),       // another class
            (good[..good.len() - 1].into(), 1), // cut off
            (with(12, 0xc0), 1),                // a pointer to itself
        ] {
            let Reading::Refused(refusal) = read(&bytes) else { panic!("{bytes:?}") };
            assert_eq!((refusal.len(), refusal[3] & 0xf, refusal[2] & 0x80), (12, rcode, 0x80), "{bytes:?}");
            assert_eq!(refusal[..2], bytes[..2]);
        }
        for bytes in [&with(2, 0x81)[..], &good[..11], &[]] {
            assert!(matches!(read(bytes), Reading::Nothing), "{bytes:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(0..=255_u8, 0..200)) {
            let _ = read(&bytes);
        }
    }
}
