//! Requests of a guest (HTTP/1.1, RFC 9112), which may be anything: the parser bounds their bytes and fields.

use httparse::{EMPTY_HEADER, Header, Status};

/// Most bytes of a request with its body.
pub(super) const LONGEST: usize = 4096;
/// Most header fields of a request.
const MOST_FIELDS: usize = 32;

/// A whole request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    pub method: &'a str,
    /// The path without scheme and authority.
    pub path: &'a str,
    /// The connection stays open after the answer.
    pub keep_alive: bool,
    pub accepts_json: bool,
    /// The token of the guest.
    pub token: Option<&'a str>,
    /// Field and value of the wanted validity of a token.
    pub validity: Option<(&'static str, &'a str)>,
    /// A proxy forwards the request for someone outside the guest.
    pub is_forwarded: bool,
}

/// Outcome of parsing what has arrived so far.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed<'a> {
    /// More bytes are needed.
    Partial,
    /// A request, and its bytes with the body.
    Whole(Request<'a>, usize),
    /// Nothing that the service understands. The connection ends after the answer.
    Refused(Refusal),
}

/// Reason to refuse bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Malformed,
    TooLong,
    /// A body whose length is not given.
    Encoded,
}

/// The fields with a token, and with the validity of a new one. The second of each is that of other clouds.
const TOKEN: [&str; 2] = ["X-metadata-token", "X-aws-ec2-metadata-token"];
const VALIDITY: [&str; 2] = ["X-metadata-token-ttl-seconds", "X-aws-ec2-metadata-token-ttl-seconds"];

/// Parses the first request in `bytes`.
pub(super) fn parse(bytes: &[u8]) -> Parsed<'_> {
    let mut fields = [EMPTY_HEADER; MOST_FIELDS];
    let mut head = httparse::Request::new(&mut fields);
    let head_len = match head.parse(bytes) {
        Ok(Status::Complete(len)) => len,
        Ok(Status::Partial) if bytes.len() >= LONGEST => return Parsed::Refused(Refusal::TooLong),
        Ok(Status::Partial) => return Parsed::Partial,
        Err(httparse::Error::TooManyHeaders) => return Parsed::Refused(Refusal::TooLong),
        Err(_) => return Parsed::Refused(Refusal::Malformed),
    };
    let (Some(method), Some(target), Some(version)) = (head.method, head.path, head.version) else {
        return Parsed::Refused(Refusal::Malformed);
    };
    let fields = Fields(head.headers);
    if fields.get(&["Transfer-Encoding"]).is_some() {
        return Parsed::Refused(Refusal::Encoded);
    }
    let body = match fields.body_len() {
        Some(len) if len <= LONGEST.saturating_sub(head_len) => len,
        Some(_) => return Parsed::Refused(Refusal::TooLong),
        None => return Parsed::Refused(Refusal::Malformed),
    };
    if bytes.len() < head_len + body {
        return Parsed::Partial;
    }
    let connection = fields.text(&["Connection"]);
    let request = Request {
        method,
        path: path_of(target),
        keep_alive: match connection {
            Some((_, value)) => has_word(value, "keep-alive") || version > 0 && !has_word(value, "close"),
            None => version > 0,
        },
        accepts_json: fields.text(&["Accept"]).is_some_and(|(_, value)| prefers_json(value)),
        token: fields.text(&TOKEN).map(|(_, value)| value),
        validity: fields.text(&VALIDITY),
        is_forwarded: fields.get(&["X-Forwarded-For"]).is_some(),
    };
    Parsed::Whole(request, head_len + body)
}

/// Header fields of a request.
struct Fields<'h, 'a>(&'h [Header<'a>]);

impl<'a> Fields<'_, 'a> {
    /// The first field with one of these names, and its value.
    fn get(&self, names: &[&'static str]) -> Option<(&'static str, &'a [u8])> {
        self.0.iter().find_map(|field| {
            let name = names.iter().find(|name| field.name.eq_ignore_ascii_case(name))?;
            Some((*name, field.value))
        })
    }

    /// As [`Fields::get`]. A value that is no text is empty, and so is no right one.
    fn text(&self, names: &[&'static str]) -> Option<(&'static str, &'a str)> {
        let (name, value) = self.get(names)?;
        Some((name, str::from_utf8(value).unwrap_or_default().trim()))
    }

    /// The length of the body, or `None` if the request contradicts itself.
    fn body_len(&self) -> Option<usize> {
        let is_length = |field: &&Header<'_>| field.name.eq_ignore_ascii_case("Content-Length");
        let mut lengths = self.0.iter().filter(is_length).map(|field| {
            let digits = field.value.trim_ascii();
            let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
            // A number beyond any length is too long.
            is_number.then(|| str::from_utf8(digits).unwrap_or_default().parse().unwrap_or(usize::MAX))
        });
        let Some(first) = lengths.next() else { return Some(0) };
        lengths.all(|other| other == first).then_some(first)?
    }
}

/// Whether a list of words has this one.
fn has_word(list: &str, word: &str) -> bool {
    list.split(',').any(|one| one.trim().eq_ignore_ascii_case(word))
}

/// Whether the first media type that the service has is JSON.
fn prefers_json(accept: &str) -> bool {
    let types = accept.split(',').map(|range| range.split(';').next().unwrap_or_default().trim());
    let known = types.map(str::to_ascii_lowercase).find(|one| {
        ["application/json", "text/plain", "plain/text", "text/*", "*/*"].contains(&one.as_str())
    });
    known.is_some_and(|one| one == "application/json")
}

/// The path of a target in origin form or absolute form (RFC 9112, section 3.2), or nothing.
fn path_of(target: &str) -> &str {
    const SCHEME: &str = "http://";
    match target.get(..SCHEME.len()) {
        Some(scheme) if scheme.eq_ignore_ascii_case(SCHEME) => {
            let rest = &target[SCHEME.len()..];
            rest.find('/').map_or("", |at| &rest[at..])
        }
        _ if target.starts_with('/') => target,
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> Request<'_> {
        match parse(text.as_bytes()) {
            Parsed::Whole(request, len) => {
                assert_eq!(len, text.len());
                request
            }
            other => panic!("{text:?}: {other:?}"),
        }
    }

    fn refusal(text: &str) -> Refusal {
        match parse(text.as_bytes()) {
            Parsed::Refused(refusal) => refusal,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[test]
    fn request_needs_all_its_bytes() {
        let text = "PUT /latest/api/token HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
        for len in 0..text.len() {
            assert_eq!(parse(&text.as_bytes()[..len]), Parsed::Partial, "{len}");
        }
        assert_eq!(whole(text).path, "/latest/api/token");
        let two = format!("{text}GET / HTTP/1.1\r\n");
        assert!(matches!(parse(two.as_bytes()), Parsed::Whole(_, len) if len == text.len()));
    }

    #[test]
    fn fields_are_found_in_any_case() {
        let get = |fields: &'static str| {
            let text = format!("GET / HTTP/1.1\r\n{fields}\r\n");
            whole(Box::leak(text.into_boxed_str()))
        };
        assert_eq!(get("").token, None);
        assert_eq!(get("X-METADATA-token:  t \r\n").token, Some("t"));
        assert_eq!(get("x-aws-ec2-metadata-token: u\r\n").token, Some("u"));
        assert_eq!(get("X-metadata-token: \u{e9}\r\n").token, Some("\u{e9}"));
        assert_eq!(
            get("x-metadata-token-ttl-seconds: 60\r\n").validity,
            Some(("X-metadata-token-ttl-seconds", "60"))
        );
        assert_eq!(
            get("X-aws-ec2-metadata-token-TTL-seconds: x\r\n").validity,
            Some(("X-aws-ec2-metadata-token-ttl-seconds", "x"))
        );
        assert!(get("x-forwarded-for: 10.0.0.1\r\n").is_forwarded && !get("").is_forwarded);
    }

    #[test]
    fn first_known_type_decides() {
        for (accept, json) in [
            ("application/json", true),
            ("Application/JSON; q=1", true),
            ("text/html, application/json, text/plain", true),
            ("text/plain, application/json", false),
            ("*/*", false),
            ("plain/text", false),
            ("image/png", false),
            ("", false),
        ] {
            assert_eq!(prefers_json(accept), json, "{accept}");
        }
    }

    #[test]
    fn connection_stays_as_version_and_field_say() {
        for (rest, stays) in [
            ("HTTP/1.1\r\n", true),
            ("HTTP/1.1\r\nConnection: close\r\n", false),
            ("HTTP/1.1\r\nConnection: TE, Close\r\n", false),
            ("HTTP/1.0\r\n", false),
            ("HTTP/1.0\r\nConnection: Keep-Alive\r\n", true),
        ] {
            assert_eq!(whole(&format!("GET / {rest}\r\n")).keep_alive, stays, "{rest}");
        }
    }

    #[test]
    fn path_leaves_out_scheme_and_host() {
        for (target, path) in [
            ("/a/b", "/a/b"),
            ("http://169.254.169.254/a", "/a"),
            ("HTTP://host/", "/"),
            ("http://host", ""),
            ("http://", ""),
            ("*", ""),
            ("a/b", ""),
        ] {
            assert_eq!(whole(&format!("GET {target} HTTP/1.0\r\n\r\n")).path, path, "{target}");
        }
    }

    #[test]
    fn malformed_and_too_long_requests_are_refused() {
        for text in [
            "\u{1}\r\n\r\n",
            "GET / HTTP/2.0\r\n\r\n",
            "GET /\r\n\r\n",
            "GET / HTTP/1.1\r\nno colon\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length:\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        ] {
            assert_eq!(refusal(text), Refusal::Malformed, "{text:?}");
        }
        let many = "A: b\r\n".repeat(MOST_FIELDS + 1);
        let long = "a".repeat(LONGEST);
        for text in [
            format!("GET / HTTP/1.1\r\n{many}\r\n"),
            format!("GET /{long}"),
            "PUT / HTTP/1.1\r\nContent-Length: 4096\r\n\r\n".to_owned(),
            "PUT / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n".to_owned(),
        ] {
            assert_eq!(refusal(&text), Refusal::TooLong, "{}", text.len());
        }
        assert_eq!(refusal("PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"), Refusal::Encoded);
    }
}
