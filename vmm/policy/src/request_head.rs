//! The host that a request of HTTP/1 is for (RFC 9112, sections 3.2 and 11.2).
//!
//! Every request of a connection is judged, so its end must be known. A head that two programs could read in
//! two ways is refused: two hosts, two lengths, a line without a carriage return.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use httparse::{EMPTY_HEADER, Request, Status};

use crate::name::Name;

/// Longest head.
pub const LONGEST_HEAD: usize = 16 << 10;
/// Most fields of a head.
const MOST_FIELDS: usize = 128;
/// The port of a host without one.
const PORT: u16 = 80;
/// Longest body. Servers count in signed numbers.
const LONGEST_BODY: u64 = i64::MAX as u64;

/// The head of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// The host.
    pub host: Host,
    /// The port that the request names.
    pub port: u16,
    /// The body behind the head.
    pub body: BodyLength,
    /// Whether the client asks for WebSocket on this connection.
    pub upgrades: bool,
    /// Lines of the head that go no further: they ask for other protocols, which would hide the hosts of
    /// later requests (RFC 9110, section 7.8). They are in order.
    pub left_out: Vec<Range<usize>>,
}

/// A host, as a request names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// A name.
    Name(Name),
    /// An address.
    Address(IpAddr),
}

/// Where the body of a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// After so many bytes.
    Bytes(u64),
    /// After the last chunk.
    Chunked,
}

/// The reading of the first bytes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadStart {
    /// The head is not complete.
    Partial,
    /// The head, and the number of bytes up to its end.
    Whole(RequestHead, usize),
    /// It is no request of HTTP/1, or ambiguous.
    Refused(&'static str),
}

type Read<T> = Result<T, &'static str>;

/// Reads the first bytes of a request, from its start on.
#[must_use]
pub fn read_head(bytes: &[u8]) -> HeadStart {
    let known = &bytes[..bytes.len().min(LONGEST_HEAD)];
    let mut fields = [EMPTY_HEADER; MOST_FIELDS];
    let mut request = Request::new(&mut fields);
    let parsed = check_lines(known).and_then(|()| match request.parse(known) {
        Ok(Status::Complete(len)) => head(&request, known).map(|head| HeadStart::Whole(head, len)),
        Ok(Status::Partial) if known.len() == LONGEST_HEAD => Err("the head is too long"),
        Ok(Status::Partial) => Ok(HeadStart::Partial),
        Err(httparse::Error::TooManyHeaders) => Err("the head has too many fields"),
        Err(_) => Err("this is no request of HTTP/1"),
    });
    parsed.unwrap_or_else(HeadStart::Refused)
}

/// Checks that lines of the head end as RFC 9112 says: servers differ in what else they take for an end.
fn check_lines(bytes: &[u8]) -> Read<()> {
    // Programs differ in how many empty lines they skip.
    if bytes.first().is_some_and(|first| b"\r\n".contains(first)) {
        return Err("an empty line precedes the request");
    }
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").map_or(bytes.len(), |at| at + 4);
    let head = &bytes[..end];
    let is_bare = |at: usize| match head[at] {
        b'\n' => at == 0 || head[at - 1] != b'\r',
        b'\r' => head.get(at + 1).is_some_and(|next| *next != b'\n'),
        byte => byte == 0,
    };
    match (0..head.len()).any(is_bare) {
        true => Err("a line of the head ends without a carriage return and a line feed"),
        false => Ok(()),
    }
}

fn head(request: &Request<'_, '_>, bytes: &[u8]) -> Read<RequestHead> {
    let (method, target) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
    if method.eq_ignore_ascii_case("CONNECT") {
        return Err("CONNECT makes a tunnel to anywhere");
    }
    if method == "PRI" {
        return Err("this is HTTP/2");
    }
    let host = only(request, "host")?.ok_or("the request has no Host")?;
    let (host, port) = authority(host)?;
    if target.starts_with('/') || target == "*" {
        // The common form.
    } else if let Some(rest) = target.split_once("://").map(|(_, rest)| rest) {
        // A proxy and a server may take either one.
        let of_target = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if !target.starts_with("http://") || authority(of_target)? != (host.clone(), port) {
            return Err("the request's target has another host");
        }
    } else {
        return Err("the request's target is no path");
    }
    let upgrade = only(request, "upgrade")?;
    let upgrades = upgrade.is_some_and(|upgrade| upgrade.trim().eq_ignore_ascii_case("websocket"));
    let is_left_out = |field: &&httparse::Header<'_>| {
        let is_upgrade = field.name.eq_ignore_ascii_case("upgrade");
        is_upgrade && !upgrades || field.name.eq_ignore_ascii_case("http2-settings")
    };
    let left_out = request.headers.iter().filter(is_left_out).map(|field| line_of(bytes, field)).collect();
    Ok(RequestHead { host, port, body: body(request)?, upgrades, left_out })
}

/// The place of a field's line in a head.
fn line_of(bytes: &[u8], field: &httparse::Header<'_>) -> Range<usize> {
    // The parser borrows names and values from the head.
    let from = field.name.as_ptr() as usize - bytes.as_ptr() as usize;
    let rest = bytes[from..].windows(2).position(|two| two == b"\r\n");
    from..rest.map_or(bytes.len(), |len| from + len + 2)
}

/// The value of a field that may be there once.
fn only<'a>(request: &'a Request<'_, '_>, name: &str) -> Read<Option<&'a str>> {
    let mut values = request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
    let Some(first) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err("a field that may be there once is there twice");
    }
    std::str::from_utf8(first.value).map(Some).map_err(|_| "a field has bytes that are no text")
}

/// A host and its port.
fn authority(text: &str) -> Read<(Host, u16)> {
    let wrong = "the host is no name and no address";
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, after) = rest.split_once(']').ok_or(wrong)?;
            let address = address.parse::<Ipv6Addr>().map_err(|_| wrong)?;
            (Host::Address(address.into()), after.strip_prefix(':').or(after.is_empty().then_some("80")))
        }
        None => {
            let (host, port) = text.split_once(':').unwrap_or((text, "80"));
            let host = match host.parse::<Ipv4Addr>() {
                Ok(address) => Host::Address(address.into()),
                // A server may take the dot for a part of another name.
                Err(_) if host.ends_with('.') => return Err(wrong),
                Err(_) => Host::Name(Name::parse(host).map_err(|_| wrong)?),
            };
            (host, Some(port))
        }
    };
    let port = port.filter(|port| is_digits(port)).ok_or(wrong)?;
    let port = if port.is_empty() { PORT } else { port.parse().map_err(|_| wrong)? };
    Ok((host, port))
}

fn body(request: &Request<'_, '_>) -> Read<BodyLength> {
    match (only(request, "content-length")?, only(request, "transfer-encoding")?) {
        (Some(_), Some(_)) => Err("the request has two lengths"),
        (None, None) => Ok(BodyLength::Bytes(0)),
        // A server of HTTP/1.0 may not know chunks, and take them for requests.
        (None, Some(coding)) if coding.eq_ignore_ascii_case("chunked") && request.version == Some(1) => {
            Ok(BodyLength::Chunked)
        }
        (None, Some(_)) => Err("the request's transfer coding is unknown"),
        // Digits alone: a number with a sign is none.
        (Some(length), None) => match length.parse() {
            Ok(number) if is_digits(length) && number <= LONGEST_BODY => Ok(BodyLength::Bytes(number)),
            _ => Err("the request's length is no number"),
        },
    }
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(text: &str) -> RequestHead {
        match read_head(text.as_bytes()) {
            HeadStart::Whole(head, len) => {
                assert_eq!(&text[len - 4..len], "\r\n\r\n");
                head
            }
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[test]
    fn host_and_the_length_of_the_body_are_found() {
        for (text, name, port, body) in [
            ("GET / HTTP/1.1\r\nHost: Example.org\r\n\r\n", "example.org", 80, 0),
            ("GET / HTTP/1.0\r\nhost: example.org:8080\r\n\r\n", "example.org", 8080, 0),
            ("POST /a?b HTTP/1.1\r\nHost: a.test\r\nContent-Length: 12\r\n\r\n", "a.test", 80, 12),
            ("GET http://a.test/x HTTP/1.1\r\nHost: a.test\r\n\r\n", "a.test", 80, 0),
            ("OPTIONS * HTTP/1.1\r\nHost: a.test:\r\n\r\n", "a.test", 80, 0),
            ("GET / HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n", "192.0.2.1", 80, 0),
            ("GET / HTTP/1.1\r\nHost: [2001:db8::1]:81\r\n\r\n", "2001:db8::1", 81, 0),
        ] {
            let head = whole(text);
            let expected = match name.parse() {
                Ok(address) => Host::Address(address),
                Err(_) => Host::Name(Name::parse(name).unwrap()),
            };
            assert_eq!(
                (head.host, head.port, head.body),
                (expected, port, BodyLength::Bytes(body)),
                "{text}"
            );
        }
        let chunked = "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: Chunked\r\n\r\n";
        assert_eq!(whole(chunked).body, BodyLength::Chunked);
        let upgrade = "GET / HTTP/1.1\r\nHost: a.test\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n";
        assert!(whole(upgrade).upgrades && !whole(chunked).upgrades);
    }

    #[test]
    fn requests_for_other_protocols_are_left_out() {
        for upgrade in ["h2c", "TLS/1.2", "connect-udp", "h2c, websocket", "websocket, h2c"] {
            let text = format!(
                "GET /a?next=http://b.test/ HTTP/1.1\r\nupgrade:  {upgrade} \r\nHost: a.test\r\n\
                 HTTP2-Settings: AA\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n"
            );
            let head = whole(&text);
            let left_out: Vec<_> = head.left_out.iter().map(|line| &text[line.clone()]).collect();
            let expected = [format!("upgrade:  {upgrade} \r\n"), "HTTP2-Settings: AA\r\n".to_owned()];
            assert_eq!((left_out, head.upgrades), (expected.iter().map(String::as_str).collect(), false));
        }
        let text = "GET / HTTP/1.1\r\nHost: a.test\r\nUpgrade: WebSocket\r\n\r\n";
        assert!(whole(text).upgrades && whole(text).left_out.is_empty());
    }

    #[test]
    fn ambiguous_heads_are_refused() {
        for (head, words) in [
            ("CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n", "tunnel"),
            ("connect a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n", "tunnel"),
            ("\r\n\r\nGET / HTTP/1.1\nHost: a.test\n\n", "empty line"),
            ("\nGET / HTTP/1.1\r\nHost: a.test\r\n\r\n", "empty line"),
            ("GET http://192.0.2.1/ HTTP/1.1\r\nHost: 192.0.2.2\r\n\r\n", "another host"),
            ("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 9223372036854775808\r\n\r\n", "no number"),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "no request of HTTP/1"),
            ("GET / HTTP/1.1\r\n\r\n", "no Host"),
            ("GET / HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n", "twice"),
            ("GET / HTTP/1.1\r\nHost: a.test\r\nhOST: a.test\r\n\r\n", "twice"),
            ("GET http://b.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "another host"),
            ("GET https://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "another host"),
            ("GET http://a.test@b.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "no name"),
            ("GET a.test HTTP/1.1\r\nHost: a.test\r\n\r\n", "no path"),
            ("GET / HTTP/1.1\r\nHost: a.test, b.test\r\n\r\n", "no name"),
            ("GET / HTTP/1.1\r\nHost: a.test/b.test\r\n\r\n", "no name"),
            ("GET / HTTP/1.1\r\nHost: a.test.\r\n\r\n", "no name"),
            ("GET / HTTP/1.1\r\nHost: a.test:80:81\r\n\r\n", "no name"),
            ("GET / HTTP/1.1\r\nHost: a.test:+80\r\n\r\n", "no name"),
            ("GET / HTTP/1.1\r\nHost:\r\n\r\n", "no name"),
            ("GET / HTTP/1.1\r\nHost: 0x7f000001\r\n\r\n", "no name"),
            ("GET / HTTP/1.1\r\nHost: 0X7F000001\r\n\r\n", "no name"),
            ("GET / HTTP/1.1\r\nHost : a.test\r\n\r\n", "no request"),
            ("GET / HTTP/1.1\r\nHost: a.test\r\n b.test\r\n\r\n", "no request"),
            ("GET / HTTP/1.1\nHost: a.test\n\n", "carriage return"),
            ("GET / HTTP/1.1\r\nHost: a.test\nHost: b.test\r\n\r\n", "carriage return"),
            ("GET / HTTP/1.1\r\nX: a\rHost: b.test\r\nHost: a.test\r\n\r\n", "carriage return"),
            ("GET /x HTTP/1.1\r\nHost: a.test\r\nUpgrade: h2c\r\nUpgrade: websocket\r\n\r\n", "twice"),
            ("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", "twice"),
            ("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: +1\r\n\r\n", "no number"),
            ("POST / HTTP/1.0\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n", "unknown"),
            ("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "unknown"),
            (
                "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
                "two lengths",
            ),
            ("\x16\x03\x01", "no request"),
        ] {
            match read_head(head.as_bytes()) {
                HeadStart::Refused(why) => assert!(why.contains(words), "{head:?}: {why}"),
                other => panic!("{head:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn endless_head_is_refused_at_the_limit() {
        let head = format!("GET / HTTP/1.1\r\nX: {}", "a".repeat(LONGEST_HEAD));
        assert_eq!(read_head(&head.as_bytes()[..LONGEST_HEAD - 1]), HeadStart::Partial);
        assert_eq!(read_head(head.as_bytes()), HeadStart::Refused("the head is too long"));
        let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: 1\r\n".repeat(MOST_FIELDS));
        assert_eq!(read_head(many.as_bytes()), HeadStart::Refused("the head has too many fields"));
    }

    proptest! {
        /// Each length has one verdict, which later bytes do not change.
        #[test]
        fn verdict_stays_with_more_bytes(at in 0_usize..80, to: u8) {
            let head = "GET /index HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\n";
            let mut bytes = format!("{head}abcGET / ").into_bytes();
            let at = at % bytes.len();
            bytes[at] = to;
            let mut last = HeadStart::Partial;
            for len in 0..=bytes.len() {
                // More bytes may show another reason.
                let verdict = match read_head(&bytes[..len]) {
                    HeadStart::Refused(_) => HeadStart::Refused(""),
                    verdict => verdict,
                };
                if last != HeadStart::Partial {
                    prop_assert_eq!(&verdict, &last, "{:?}", String::from_utf8_lossy(&bytes[..len]));
                }
                last = verdict;
            }
        }
    }
}
