//! The command line's client of the REST API: one blocking HTTP/1.1 request over a unix socket.
//!
//! It uses `UnixStream` directly, because an HTTP library would start a runtime for one request. It talks
//! only to volt-vmm's server, which states the length of a response and closes the connection after one
//! request.

use std::fmt::Display;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use volt_vmm::internal::peer_of;

use crate::cures;
use crate::failure::Failure;
use crate::rest::FaultMessage;

/// Longest response, in bytes.
const RESPONSE_LIMIT: u64 = 1 << 20;

/// Sends `body` as JSON with `PUT path` to the server at `socket`, and waits for the response without a
/// limit.
///
/// # Errors
/// Returns an error if no process serves the socket, if the connection breaks, or if the server refuses. The
/// server's text is the error then.
pub(crate) fn put(socket: &Path, path: &str, body: &impl Serialize) -> Result<(), Failure> {
    request(socket, "PUT", path, body).map(drop)
}

/// Sends `body` as JSON with `POST path`, and returns the response.
///
/// # Errors
/// As [`put`], and a response that is no `T`.
pub(crate) fn post<T: DeserializeOwned>(
    socket: &Path,
    path: &str,
    body: &impl Serialize,
) -> Result<T, Failure> {
    decode(socket, "POST", path, &request(socket, "POST", path, body)?)
}

/// Returns the response to `GET path`.
///
/// # Errors
/// As [`post`].
pub(crate) fn get<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T, Failure> {
    decode(socket, "GET", path, &request(socket, "GET", path, &())?)
}

fn decode<T: DeserializeOwned>(
    socket: &Path,
    method: &str,
    path: &str,
    response: &[u8],
) -> Result<T, Failure> {
    serde_json::from_slice(response).map_err(|error| {
        Failure::socket(socket, format!("cannot decode the response to {method} {path}: {error}"))
    })
}

/// Returns the id of the process that serves the socket.
///
/// # Errors
/// As [`put`].
pub(crate) fn process_of(socket: &Path) -> Result<i32, Failure> {
    let unknown = |why: &dyn Display| Failure::socket(socket, format!("cannot tell who serves it: {why}"));
    let peer = peer_of(connect(socket)?).map_err(|error| unknown(&error))?;
    let process = peer.process.and_then(|process| process.try_into().ok());
    process.ok_or_else(|| unknown(&"its process is outside this pid namespace"))
}

/// Sends a request and returns the body of the response.
fn request(socket: &Path, method: &str, path: &str, body: &impl Serialize) -> Result<Vec<u8>, Failure> {
    let body = serde_json::to_vec(body).map_err(|error| {
        Failure::socket(socket, format!("cannot encode the request {method} {path} as JSON: {error}"))
    })?;
    let mut stream = connect(socket)?;
    let response = exchange(&mut stream, method, path, &body).map_err(|error| {
        Failure::socket(socket, format!("the connection broke during {method} {path}: {error}"))
    })?;
    let response = parse(&response).ok_or_else(|| {
        let problem = if response.is_empty() {
            "no response (has that volt-vmm ended?)"
        } else {
            "incomplete HTTP response"
        };
        Failure::socket(socket, format!("{method} {path}: {problem}"))
    })?;
    match response {
        Response { status: 200..=299, body } => Ok(body.to_vec()),
        Response { status, body } => {
            let fault = FaultMessage::deserialize(&mut serde_json::Deserializer::from_slice(body));
            let text = fault.map(|fault| fault.report(cures::as_option));
            let text =
                text.unwrap_or_else(|_| format!("{method} {path}: the server returned status {status}"));
            Err(Failure::Server(text))
        }
    }
}

fn connect(socket: &Path) -> Result<UnixStream, Failure> {
    UnixStream::connect(socket).map_err(|error| {
        let problem = match error.kind() {
            ErrorKind::NotFound => "no such file; is a volt-vmm running with this --api-socket?".into(),
            ErrorKind::ConnectionRefused => {
                "no process listens; the volt-vmm that created it has ended".into()
            }
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
    let mut response = Vec::new();
    stream.take(RESPONSE_LIMIT).read_to_end(&mut response)?;
    Ok(response)
}

/// Status and body of an HTTP response.
#[derive(Debug, PartialEq, Eq)]
struct Response<'a> {
    status: u16,
    body: &'a [u8],
}

/// Parses a response. Returns `None` unless it is complete.
fn parse(response: &[u8]) -> Option<Response<'_>> {
    const END: &[u8] = b"\r\n\r\n";
    let end = response.windows(END.len()).position(|window| window == END)?;
    let head = str::from_utf8(&response[..end]).ok()?;
    let body = &response[end + END.len()..];
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    let length = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map_or(Some(body.len()), |(_, length)| length.trim().parse().ok())?;
    (body.len() == length).then_some(Response { status, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_response_is_parsed() {
        let response = parse(b"HTTP/1.1 204 No Content\r\ndate: x\r\n\r\n").unwrap();
        assert_eq!(response, Response { status: 204, body: b"" });
        let response = parse(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}").unwrap();
        assert_eq!(response, Response { status: 400, body: b"{}" });
    }

    #[test]
    fn incomplete_or_foreign_response_is_refused() {
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
    fn socket_without_a_server_is_named_in_the_error() {
        let dir = crate::rest::testing::Dir::new();
        let gone = dir.path("gone");
        let error = put(&gone, "/", &()).unwrap_err().to_string();
        assert!(error.contains(gone.to_str().unwrap()) && error.contains("no such file"), "{error}");
        let stale = dir.path("stale");
        drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
        let error = put(&stale, "/", &()).unwrap_err().to_string();
        assert!(error.contains("no process listens"), "{error}");
    }
}
