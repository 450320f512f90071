//! Requests to the agent, and the heads of its answers.

use std::io::{self, ErrorKind, Read, Write};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Error;
use crate::text::shown;
use crate::timed::Timed;

const END_OF_HEAD: &[u8] = b"\r\n\r\n";
/// Longest head of an answer.
const LONGEST_HEAD: usize = 16 << 10;
/// Longest body of an answer that is read as a whole.
const LONGEST_BODY: u64 = 1 << 20;

/// A request with a body that is known from the start.
#[derive(Debug)]
pub struct Request<'a> {
    method: &'static str,
    path: &'a str,
    version: &'static str,
    fields: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl<'a> Request<'a> {
    /// A request without a body. The path is encoded.
    #[must_use]
    pub fn new(method: &'static str, path: &'a str) -> Self {
        Self { method, path, version: "1.0", fields: Vec::new(), body: Vec::new() }
    }

    /// Adds a field of the head. Its value has no line ends.
    #[must_use]
    pub fn field(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// Asks for a connection that lasts beyond the answer, for another request ([`Answer::body_and_rest`]).
    #[must_use]
    pub fn keeping_connection(self) -> Self {
        self.field("Connection", "keep-alive")
    }

    /// Asks for another protocol on the connection, which a refusal closes. HTTP/1.0 has no such request.
    #[must_use]
    pub fn upgrade(self, protocol: &str) -> Self {
        Self { version: "1.1", ..self }.field("Connection", "Upgrade, close").field("Upgrade", protocol)
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, kind: &str, body: Vec<u8>) -> Self {
        self.body = body;
        self.field("Content-Type", kind)
    }

    /// Sets a body of JSON.
    #[must_use]
    pub fn json(self, body: &impl Serialize) -> Self {
        let body = serde_json::to_vec(body).expect("these bodies have no keys but text");
        self.body("application/json", body)
    }

    /// Sends it. The answer ends with its length, or with the connection.
    ///
    /// # Errors
    /// The connection breaks.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let Self { method, path, version, fields, body } = self;
        let mut bytes = format!("{method} {path} HTTP/{version}\r\nHost: localhost\r\n").into_bytes();
        for (name, value) in fields {
            bytes.extend_from_slice(format!("{name}: {}\r\n", value.replace(['\r', '\n'], " ")).as_bytes());
        }
        bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
        bytes.extend_from_slice(body);
        to.write_all(&bytes)
    }
}

/// An answer, whose body is read later.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    head: String,
    /// The beginning of the body.
    pub unread: Vec<u8>,
    /// The rest of the body.
    pub stream: Timed,
}

impl Answer {
    /// Reads the head.
    ///
    /// # Errors
    /// The connection breaks, or the answer is none.
    pub fn read(mut stream: Timed) -> io::Result<Self> {
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        let end = loop {
            let at = bytes.windows(END_OF_HEAD.len()).position(|window| window == END_OF_HEAD);
            match at {
                Some(at) => break at,
                None if bytes.len() > LONGEST_HEAD => return Err(ErrorKind::InvalidData.into()),
                None => {}
            }
            match stream.read(&mut buffer) {
                // It was reset, as by a guest that boots.
                Ok(0) => return Err(ErrorKind::ConnectionRefused.into()),
                Ok(count) => bytes.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        let unread = bytes.split_off(end + END_OF_HEAD.len());
        let head = String::from_utf8_lossy(&bytes).into_owned();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or(ErrorKind::InvalidData)?;
        Ok(Self { status, head, unread, stream })
    }

    /// A field of the head.
    #[must_use]
    pub fn field(&self, wanted: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim())
    }

    /// Reads the body, at most 1 MiB of it.
    ///
    /// # Errors
    /// The connection breaks.
    pub fn body(self) -> io::Result<Vec<u8>> {
        self.body_up_to(LONGEST_BODY)
    }

    /// Reads the body, at most so many bytes of it.
    pub(crate) fn body_up_to(mut self, most: u64) -> io::Result<Vec<u8>> {
        self.read_body(most)?;
        Ok(self.unread)
    }

    /// Reads the body, at most 1 MiB of it. Returns it, and the connection if it takes another request.
    ///
    /// # Errors
    /// The connection breaks.
    pub fn body_and_rest(mut self) -> io::Result<(Vec<u8>, Option<Timed>)> {
        let is_whole = self.read_body(LONGEST_BODY)?;
        let lasts = self.field("Connection").is_some_and(|value| value.eq_ignore_ascii_case("keep-alive"));
        Ok((self.unread, (is_whole && lasts).then_some(self.stream)))
    }

    /// Reads the body to its end, or so many bytes. Returns whether it ends by its length, before the
    /// connection.
    fn read_body(&mut self, most: u64) -> io::Result<bool> {
        let length = self.field("Content-Length").and_then(|length| length.parse::<u64>().ok());
        let left = length.map_or(most, |length| length.saturating_sub(self.unread.len() as u64));
        (&mut self.stream).take(left.min(most)).read_to_end(&mut self.unread)?;
        let read = self.unread.len() as u64;
        match length {
            Some(length) if read < length && left <= most => Err(ErrorKind::UnexpectedEof.into()),
            length => Ok(length == Some(read)),
        }
    }

    /// The refusal. Its code is that of the body, or of the status.
    pub(crate) fn refusal(self) -> Error {
        let status = self.status;
        let body = self.body().unwrap_or_default();
        let Refusal { code, message } = serde_json::from_slice(&body).unwrap_or_default();
        let code = match (code.as_ref().and_then(Value::as_str), status) {
            (Some(code), _) => &shown(code),
            (None, 403) => "permission_denied",
            (None, 404) => "not_found",
            (None, 409) => "already_exists",
            (None, _) => "",
        };
        let message = message.as_deref().map_or_else(|| format!("status {status}"), shown);
        Error::refused(code, message)
    }

    /// The message of a refusal.
    #[must_use]
    pub fn text(self) -> String {
        self.refusal().to_string()
    }
}

/// The body of a refusal. The code is a number where the call is one of REST.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Refusal {
    code: Option<Value>,
    message: Option<String>,
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn request_has_its_length_and_keeps_its_lines() {
        let mut sent = Vec::new();
        Request::new("PUT", "/x")
            .field("A", "b\r\nc")
            .body("text/plain", b"hi".to_vec())
            .write(&mut sent)
            .unwrap();
        let expected = "PUT /x HTTP/1.0\r\nHost: localhost\r\nA: b  c\r\nContent-Type: text/plain\r\n\
                        Content-Length: 2\r\n\r\nhi";
        assert_eq!(String::from_utf8(sent).unwrap(), expected);
    }

    #[test]
    fn upgrade_is_asked_for_in_http_1_1() {
        let mut sent = Vec::new();
        Request::new("GET", "/x").upgrade("tcp").write(&mut sent).unwrap();
        let expected = "GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\n\
                        Upgrade: tcp\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(String::from_utf8(sent).unwrap(), expected);
    }

    #[test]
    fn answer_is_split_into_head_and_body() {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(b"HTTP/1.0 404 Not Found\r\nServer: x\r\n\r\n{\"message\":\"no\"}").unwrap();
        drop(far);
        let answer = Answer::read(Timed::new(near, None)).unwrap();
        assert_eq!((answer.status, answer.field("server")), (404, Some("x")));
        assert_eq!(answer.text(), "no");
    }

    /// Reads an answer of the other side, which keeps the connection.
    fn answer(head: &str, body: &str) -> (Answer, UnixStream) {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(format!("HTTP/1.0 200 OK\r\n{head}\r\n\r\n{body}").as_bytes()).unwrap();
        let near = Timed::new(near, Some(std::time::Duration::from_secs(60)));
        (Answer::read(near).unwrap(), far)
    }

    #[test]
    fn body_ends_with_its_length_and_the_connection_lasts_if_asked_to() {
        let (answered, _far) = answer("Content-Length: 2", "hi");
        assert_eq!(answered.body().unwrap(), b"hi");
        for (field, lasts) in
            [("x: y", false), ("connection: close", false), ("connection: keep-alive", true)]
        {
            let (answered, mut far) = answer(&format!("content-length: 2\r\n{field}"), "hi");
            let (body, rest) = answered.body_and_rest().unwrap();
            assert_eq!((&body[..], rest.is_some()), (&b"hi"[..], lasts), "{field}");
            let Some(mut rest) = rest else { continue };
            far.write_all(b"next").unwrap();
            let mut next = [0; 4];
            rest.read_exact(&mut next).unwrap();
            assert_eq!(&next, b"next");
        }
    }

    #[test]
    fn body_without_a_length_ends_with_the_connection_which_takes_nothing_more() {
        let (answered, far) = answer("connection: keep-alive", "hi");
        drop(far);
        let (body, rest) = answered.body_and_rest().unwrap();
        assert!(body == b"hi" && rest.is_none());
    }

    #[test]
    fn body_that_is_cut_is_an_error() {
        let (answered, far) = answer("Content-Length: 3", "hi");
        drop(far);
        assert_eq!(answered.body().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn answer_that_ends_in_its_head_or_is_none_is_an_error() {
        for (broken, kind) in
            [("HTTP/1.0 200", ErrorKind::ConnectionRefused), ("x\r\n\r\n", ErrorKind::InvalidData)]
        {
            let (near, mut far) = UnixStream::pair().unwrap();
            far.write_all(broken.as_bytes()).unwrap();
            drop(far);
            assert_eq!(Answer::read(Timed::new(near, None)).unwrap_err().kind(), kind, "{broken}");
        }
    }
}
