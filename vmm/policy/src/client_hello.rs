//! The name in the first message of a TLS client (RFC 8446, sections 4.1.2 and 5.1; RFC 6066, section 3).
//!
//! The reader is stricter than servers are: what two programs could read in two ways is refused. It is ours
//! because a TLS library hides what decides here, such as the encrypted message beside the name.

use crate::name::Name;

/// Most bytes up to the end of the message. Browsers send 2 KiB with a post-quantum key.
pub const LONGEST_HELLO: usize = 16 << 10;
/// Bytes of a record's header, and of a message's.
const RECORD: usize = 5;
const MESSAGE: usize = 4;
/// Longest record (RFC 8446, section 5.1).
const LONGEST_RECORD: usize = 1 << 14;
/// Content type of records of the handshake, and type of the message.
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
/// Extensions: the server's name, and the encrypted client hello (RFC 9849).
const SERVER_NAME: u16 = 0;
const ENCRYPTED_HELLO: u16 = 0xfe0d;
/// The only type of a name.
const HOST_NAME: u8 = 0;

/// The first message, as far as a policy needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// The server's name. There is none for an address.
    pub name: Option<Name>,
    /// Whether another message is encrypted within, whose name cannot be seen. Browsers add a random one.
    pub has_encrypted: bool,
}

/// The reading of the first bytes of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HelloStart {
    /// The message is not complete.
    Partial,
    /// The message, and the number of bytes up to its end.
    Whole(ClientHello, usize),
    /// No client sends this, or it is ambiguous.
    Refused(&'static str),
}

/// Reads the first bytes of a stream, from its start on.
#[must_use]
pub fn read_hello(bytes: &[u8]) -> HelloStart {
    match message(bytes) {
        Ok(None) if bytes.len() >= LONGEST_HELLO => HelloStart::Refused("the first message is too long"),
        Ok(None) => HelloStart::Partial,
        Ok(Some((message, len))) => match hello(&message) {
            Ok(hello) => HelloStart::Whole(hello, len),
            Err(why) => HelloStart::Refused(why),
        },
        Err(why) => HelloStart::Refused(why),
    }
}

type Read<T> = Result<T, &'static str>;

/// The body of the first message, out of as many records as it takes, and the length of these.
fn message(bytes: &[u8]) -> Read<Option<(Vec<u8>, usize)>> {
    let (mut whole, mut at) = (Vec::new(), 0);
    loop {
        let wanted = match whole.first_chunk::<MESSAGE>() {
            Some(&[CLIENT_HELLO, a, b, c]) => MESSAGE + u32::from_be_bytes([0, a, b, c]) as usize,
            Some(_) => return Err("the first message is no client hello"),
            None if whole.first().is_some_and(|kind| *kind != CLIENT_HELLO) => {
                return Err("the first message is no client hello");
            }
            None => MESSAGE,
        };
        if wanted > LONGEST_HELLO {
            return Err("the first message is too long");
        }
        if whole.len() > MESSAGE && whole.len() >= wanted {
            return match whole.len() == wanted {
                true => Ok(Some((whole.split_off(MESSAGE), at))),
                false => Err("the record goes on after the first message"),
            };
        }
        let rest = bytes.get(at..).unwrap_or_default();
        check_record(rest)?;
        let Some(&[_, _, _, high, low]) = rest.first_chunk::<RECORD>() else { return Ok(None) };
        let len = usize::from(u16::from_be_bytes([high, low]));
        // A part of a record's content tells enough to refuse what it begins.
        let content = &rest[RECORD..rest.len().min(RECORD + len)];
        whole.extend_from_slice(content);
        if content.len() < len {
            return match whole.first() {
                Some(&CLIENT_HELLO) | None => Ok(None),
                Some(_) => Err("the first message is no client hello"),
            };
        }
        at += RECORD + len;
    }
}

/// Checks the header of a record, or its beginning.
fn check_record(bytes: &[u8]) -> Read<()> {
    match *bytes {
        [kind, ..] if kind != HANDSHAKE => Err("the stream does not begin with a TLS handshake"),
        [_, major, ..] if major != 3 => Err("the version of TLS is unknown"),
        [_, _, _, high, low, ..] => match usize::from(u16::from_be_bytes([high, low])) {
            0 => Err("a record is empty"),
            len if len > LONGEST_RECORD => Err("a record is too long"),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Bytes that are read from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or("a length goes beyond the first message")?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self, bytes: usize) -> Read<usize> {
        Ok(self.take(bytes)?.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    /// A vector, whose length comes first, in so many bytes.
    fn vector(&mut self, bytes: usize) -> Read<Reader<'a>> {
        let len = self.number(bytes)?;
        self.take(len).map(Reader)
    }

    fn end(&self) -> Read<()> {
        if self.0.is_empty() { Ok(()) } else { Err("bytes follow the last field") }
    }
}

fn hello(message: &[u8]) -> Read<ClientHello> {
    let mut reader = Reader(message);
    let (_version, _random) = (reader.take(2)?, reader.take(32)?);
    let (_session, _suites, _compressions) = (reader.vector(1)?, reader.vector(2)?, reader.vector(1)?);
    let mut found = ClientHello { name: None, has_encrypted: false };
    if reader.0.is_empty() {
        // Clients of before TLS 1.2 may have no extensions.
        return Ok(found);
    }
    let mut extensions = reader.vector(2)?;
    reader.end()?;
    let mut has_name = false;
    while !extensions.0.is_empty() {
        let kind = extensions.number(2)? as u16;
        let content = extensions.vector(2)?;
        match kind {
            SERVER_NAME if has_name => return Err("the message has two server names"),
            SERVER_NAME => (has_name, found.name) = (true, Some(server_name(content)?)),
            ENCRYPTED_HELLO => found.has_encrypted = true,
            _ => {}
        }
    }
    Ok(found)
}

fn server_name(mut extension: Reader<'_>) -> Read<Name> {
    let mut list = extension.vector(2)?;
    extension.end()?;
    let kind = list.number(1)?;
    let name = list.vector(2)?;
    if kind != usize::from(HOST_NAME) {
        return Err("the server's name has an unknown type");
    }
    if !list.0.is_empty() {
        return Err("the message has two server names");
    }
    let text = std::str::from_utf8(name.0).map_err(|_| "the server's name is no name")?;
    // A server may take the dot for a part of another name.
    if text.ends_with('.') {
        return Err("the server's name ends with a dot");
    }
    Name::parse(text).map_err(|_| "the server's name is no name")
}

/// Messages for tests.
#[cfg(test)]
pub(crate) mod testing {
    /// Bytes behind their length, which takes so many bytes.
    pub fn vector(len_bytes: usize, content: &[u8]) -> Vec<u8> {
        let len = content.len().to_be_bytes();
        [&len[len.len() - len_bytes..], content].concat()
    }

    /// An extension.
    pub fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &vector(2, content)].concat()
    }

    /// The extension with a server's name.
    pub fn sni(name: &str) -> Vec<u8> {
        extension(0, &vector(2, &[&[0][..], &vector(2, name.as_bytes())].concat()))
    }

    /// A message with these extensions.
    pub fn message_of(extensions: &[Vec<u8>]) -> Vec<u8> {
        let body = [
            &[3, 3][..],
            &[7; 32],
            &vector(1, &[9; 32]),
            &vector(2, &[0x13, 1, 0x13, 2]),
            &vector(1, &[0]),
            &vector(2, &extensions.concat()),
        ]
        .concat();
        [&[1][..], &vector(3, &body)].concat()
    }

    /// Records of so many bytes of content.
    pub fn records(message: &[u8], size: usize) -> Vec<u8> {
        let record = |content: &[u8]| [&[22, 3, 1][..], &vector(2, content)].concat();
        message.chunks(size).flat_map(record).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::testing::{extension, message_of, records, sni, vector};
    use super::*;

    fn whole(name: Option<&str>, has_encrypted: bool, len: usize) -> HelloStart {
        let name = name.map(|name| Name::parse(name).unwrap());
        HelloStart::Whole(ClientHello { name, has_encrypted }, len)
    }

    fn refusal(bytes: &[u8]) -> &'static str {
        match read_hello(bytes) {
            HelloStart::Refused(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn name_is_found_among_other_extensions() {
        let others = [extension(43, &[2, 3, 4]), sni("WWW.example.org"), extension(51, &[0; 1200])];
        let bytes = records(&message_of(&others), 1 << 14);
        assert_eq!(read_hello(&bytes), whole(Some("www.example.org"), false, bytes.len()));
        let early_data = [&bytes[..], &[23, 3, 3, 0, 1, 0]].concat();
        assert_eq!(read_hello(&early_data), whole(Some("www.example.org"), false, bytes.len()));
        let bytes = records(&message_of(&[extension(43, &[2, 3, 4])]), 1 << 14);
        assert_eq!(read_hello(&bytes), whole(None, false, bytes.len()));
        let encrypted = records(&message_of(&[sni("a.test"), extension(0xfe0d, &[0; 200])]), 1 << 14);
        assert_eq!(read_hello(&encrypted), whole(Some("a.test"), true, encrypted.len()));
    }

    #[test]
    fn ambiguous_and_foreign_messages_are_refused() {
        let hello = |extensions: &[Vec<u8>]| records(&message_of(extensions), 1 << 14);
        let raw_sni = |list: &[u8]| hello(&[extension(0, list)]);
        let entry = |kind: u8, name: &[u8]| [&[kind][..], &vector(2, name)].concat();
        let two = [entry(0, b"a.test"), entry(0, b"b.test")].concat();
        let mut longer = message_of(&[sni("a.test")]);
        longer.extend([20, 0, 0, 0]);
        let mut beyond = message_of(&[sni("a.test")]);
        beyond.push(0);
        beyond[3] += 1;
        for (bytes, words) in [
            (b"GET / HTTP/1.1\r\n".to_vec(), "does not begin"),
            (vec![22, 2], "version"),
            (vec![22, 3, 1, 0, 0], "empty"),
            (vec![22, 3, 1, 0x40, 1], "too long"),
            (vec![22, 3, 1, 0, 4, 2], "no client hello"),
            (vec![22, 3, 1, 0, 4, 1, 1, 0, 0], "too long"),
            (hello(&[sni("a.test"), sni("b.test")]), "two server names"),
            (raw_sni(&vector(2, &two)), "two server names"),
            (raw_sni(&vector(2, &entry(1, b"a.test"))), "unknown type"),
            (raw_sni(&[&vector(2, &entry(0, b"a.test"))[..], &[0]].concat()), "bytes follow"),
            (raw_sni(&[]), "goes beyond"),
            (hello(&[sni("a.test.")]), "dot"),
            (hello(&[sni("a\0.test")]), "no name"),
            (hello(&[sni("\u{fc}.test")]), "no name"),
            (hello(&[sni("192.0.2.1")]), "no name"),
            (hello(&[sni("")]), "no name"),
            (records(&longer, 1 << 14), "goes on after"),
            (records(&beyond, 1 << 14), "bytes follow"),
        ] {
            assert!(refusal(&bytes).contains(words), "{words}: {}", refusal(&bytes));
        }
    }

    #[test]
    fn endless_message_is_refused_at_the_limit() {
        let message = message_of(&[extension(51, &vec![0; LONGEST_HELLO - 200])]);
        let bytes = records(&message, 1);
        assert!(refusal(&bytes[..LONGEST_HELLO]).contains("too long"));
    }

    proptest! {
        /// A verdict falls once all bytes are known, and no part of them gives another one.
        #[test]
        fn records_and_prefixes_do_not_change_the_name(size in 1_usize..600, cut in 0_usize..4000) {
            let message = message_of(&[extension(51, &[0; 500]), sni("www.example.org")]);
            let bytes = records(&message, size);
            prop_assert_eq!(read_hello(&bytes), whole(Some("www.example.org"), false, bytes.len()));
            let part = read_hello(&bytes[..cut.min(bytes.len() - 1)]);
            prop_assert_eq!(part, HelloStart::Partial);
        }

        /// A refused beginning stays refused: a message that may pass needs no later byte to be refused.
        #[test]
        fn changed_byte_gives_one_verdict_at_each_length(at in 0_usize..200, to: u8, size in 1_usize..600) {
            let mut bytes = records(&message_of(&[sni("www.example.org")]), size);
            let at = at % bytes.len();
            bytes[at] = to;
            let mut last = HelloStart::Partial;
            for len in 0..=bytes.len() {
                let verdict = read_hello(&bytes[..len]);
                if last != HelloStart::Partial {
                    prop_assert_eq!(&verdict, &last);
                }
                last = verdict;
            }
        }
    }
}
