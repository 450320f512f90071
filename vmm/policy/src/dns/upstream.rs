//! Questions for the servers of the host.

use domain::base::iana::{Rcode, Rtype};
use domain::base::{Message, MessageBuilder};

use super::question::{MOST_UDP, Question};
use crate::name::Name;

/// Kinds of messages from a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromServer {
    /// Not the answer to this question.
    Foreign,
    /// The beginning of the answer. The whole one has to be asked for over TCP.
    Truncated,
    /// The server cannot answer. Another one may.
    Failed,
    /// The answer.
    Answer,
}

/// A question for a server, with this number (RFC 1035, section 4.1.1). `None` if the name has no form on the
/// wire.
#[must_use]
pub fn query(id: u16, name: &Name, kind: u16) -> Option<Vec<u8>> {
    let question = Question::about(name, Rtype::from_int(kind))?;
    let mut message = MessageBuilder::new_vec();
    message.header_mut().set_id(id);
    message.header_mut().set_rd(true);
    let mut section = message.question();
    section.push((&question.wire, question.kind)).ok()?;
    let mut additional = section.additional();
    let edns = additional.opt(|opt| {
        opt.set_udp_payload_size(MOST_UDP);
        Ok(())
    });
    edns.ok()?;
    Some(additional.finish())
}

/// Looks at a message from the server that was asked.
#[must_use]
pub fn look(query: &[u8], message: &[u8]) -> FromServer {
    let (Ok(query), Ok(message)) = (Message::from_slice(query), Message::from_slice(message)) else {
        return FromServer::Foreign;
    };
    let header = message.header();
    // A server that does not know EDNS may leave out the question.
    let is_bare_failure =
        header.qr() && header.id() == query.header().id() && header.rcode() != Rcode::NOERROR;
    match message.is_answer(query) {
        false if is_bare_failure && message.header_counts().qdcount() == 0 => FromServer::Failed,
        false => FromServer::Foreign,
        true if header.tc() => FromServer::Truncated,
        true if [Rcode::NOERROR, Rcode::NXDOMAIN].contains(&header.rcode()) => FromServer::Answer,
        true => FromServer::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_told_from_other_messages() {
        let name = Name::parse("www.example.org").unwrap();
        let query = query(7, &name, 28).unwrap();
        let answer = |at: usize, byte: u8| {
            let mut message = query.clone();
            message[2] |= 0x80;
            message[at] = byte;
            message
        };
        for (message, expected) in [
            (answer(0, 0), FromServer::Answer),
            (answer(3, 3), FromServer::Answer),
            (answer(3, 2), FromServer::Failed),
            (answer(3, 5), FromServer::Failed),
            (answer(2, 0x83), FromServer::Truncated),
            (answer(1, 8), FromServer::Foreign),
            (answer(2, 1), FromServer::Foreign),
            (answer(13, b'x'), FromServer::Foreign),
            (query.clone(), FromServer::Foreign),
            (vec![0, 7, 0x80, 1, 0, 0, 0, 0, 0, 0, 0, 0], FromServer::Failed),
            (vec![0, 8, 0x80, 1, 0, 0, 0, 0, 0, 0, 0, 0], FromServer::Foreign),
            (vec![0, 7], FromServer::Foreign),
        ] {
            assert_eq!(look(&query, &message), expected, "{message:?}");
        }
    }
}
