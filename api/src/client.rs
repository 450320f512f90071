//! A client of the REST API for the command line: one blocking HTTP/1.1 request over a unix socket.
//!
//! Written by hand over `UnixStream`, because an HTTP client library would start a runtime for one request. It talks to
//! volt-vmm's own server only, whose answers state their length and are closed after one request.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::cures;
use crate::failure::Failure;
use crate::rest::FaultMessage;

/// Longest answer that is read.
const LIMIT: u64 = 1 << 20;

/// Sends `body` as JSON with `PUT path` to the server at `socket`, and waits as long as it takes.
///
/// # Errors
/// Nobody serves the socket, the connection breaks, or the server refuses; its own words are the error then.
pub(crate) fn put(socket: &Path, path: &str, body: &impl Serialize) -> Result<(), Failure> {
    ask(socket, "PUT", path, body).map(drop)
}

/// The same with `POST path`, and gives the answer.
///
/// # Errors
/// As [`put`]; the answer is none that this client knows.
pub(crate) fn post<T: DeserializeOwned>(
    socket: &Path,
    path: &str,
    body: &impl Serialize,
) -> Result<T, Failure> {
    understood(socket, "POST", path, &ask(socket, "POST", path, body)?)
}

/// What `GET path` answers.
///
/// # Errors
/// As [`post`].
pub(crate) fn get<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T, Failure> {
    understood(socket, "GET", path, &ask(socket, "GET", path, &())?)
}

fn understood<T: DeserializeOwned>(
    socket: &Path,
    method: &str,
    path: &str,
    answer: &[u8],
) -> Result<T, Failure> {
    serde_json::from_slice(answer).map_err(|error| {
        Failure::socket(socket, format!("the answer to {method} {path} cannot be understood: {error}"))
    })
}

/// The body of the answer to a request.
fn ask(socket: &Path, method: &str, path: &str, body: &impl Serialize) -> Result<Vec<u8>, Failure> {
    let body = serde_json::to_vec(body).map_err(|error| {
        Failure::socket(socket, format!("the request to {path} cannot be written as JSON: {error}"))
    })?;
    let mut stream = connect(socket)?;
    let answer = exchange(&mut stream, method, path, &body).map_err(|error| {
        Failure::socket(socket, format!("the connection broke during {method} {path}: {error}"))
    })?;
    let answer = parse(&answer).ok_or_else(|| {
        let what = if answer.is_empty() {
            "no answer (has that volt-vmm ended?)"
        } else {
            "not a complete HTTP answer"
        };
        Failure::socket(socket, format!("{method} {path}: {what}"))
    })?;
    match answer {
        Answer { status: 200..=299, body } => Ok(body.to_vec()),
        Answer { status, body } => {
            let fault = FaultMessage::deserialize(&mut serde_json::Deserializer::from_slice(body));
            let words = fault.map(|fault| fault.report(cures::as_option));
            Err(Failure::Server(
                words
                    .unwrap_or_else(|_| format!("{method} {path}: the server answered with status {status}")),
            ))
        }
    }
}

fn connect(socket: &Path) -> Result<UnixStream, Failure> {
    UnixStream::connect(socket).map_err(|error| {
        let problem = match error.kind() {
            ErrorKind::NotFound => "there is none; is a volt-vmm running with this --api-socket?".into(),
            ErrorKind::ConnectionRefused => "nobody listens; the volt-vmm that made it has ended".into(),
            _ => format!("cannot connect: {error}"),
        };
        Failure::socket(socket, problem)
    })
}

fn exchange(stream: &mut (impl Read + Write), method: &str, path: &str, body: &[u8]) -> io::Result<Vec<u8>> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept: application/json\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat())?;
    let mut answer = Vec::new();
    stream.take(LIMIT).read_to_end(&mut answer)?;
    Ok(answer)
}

/// Status and body of an HTTP answer.
#[derive(Debug, PartialEq, Eq)]
struct Answer<'a> {
    status: u16,
    body: &'a [u8],
}

/// `None` for anything but a whole answer.
fn parse(answer: &[u8]) -> Option<Answer<'_>> {
    const END: &[u8] = b"\r\n\r\n";
    let end = answer.windows(END.len()).position(|window| window == END)?;
    let head = str::from_utf8(&answer[..end]).ok()?;
    let body = &answer[end + END.len()..];
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    let length = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map_or(Some(body.len()), |(_, length)| length.trim().parse().ok())?;
    (body.len() == length).then_some(Answer { status, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_answers() {
        let answer = parse(b"HTTP/1.1 204 No Content\r\ndate: x\r\n\r\n").unwrap();
        assert_eq!(answer, Answer { status: 204, body: b"" });
        let answer = parse(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}").unwrap();
        assert_eq!(answer, Answer { status: 400, body: b"{}" });
    }

    #[test]
    fn broken_answers() {
        for broken in [
            "",
            "HTTP/1.1 204 No Content\r\n",
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 x\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort",
            "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        ] {
            assert_eq!(parse(broken.as_bytes()), None, "{broken:?}");
        }
    }

    #[test]
    fn a_socket_that_nobody_serves_is_named() {
        let dir = crate::rest::testing::Dir::new();
        let gone = dir.path("gone");
        let error = put(&gone, "/", &()).unwrap_err().to_string();
        assert!(error.contains(gone.to_str().unwrap()) && error.contains("there is none"), "{error}");
        let stale = dir.path("stale");
        drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
        let error = put(&stale, "/", &()).unwrap_err().to_string();
        assert!(error.contains("nobody listens"), "{error}");
    }
}
