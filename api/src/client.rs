//! The command line's client of the REST API: one blocking HTTP/1.1 request over a unix socket.
//!
//! It uses `UnixStream` directly, because an HTTP library would start a runtime for one request. It talks
//! only to volt-vmm's server, which states the length of a response and closes the connection after one
//! request.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use volt_agent_client::Timed;
use volt_vmm::internal::peer_of;

use crate::cures;
use crate::failure::Failure;
use crate::rest::FaultMessage;

pub(crate) mod events;

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

/// As [`put`], for a request that a working server answers within `patience`.
///
/// # Errors
/// As [`put`], or the server is too slow.
pub(crate) fn put_within(
    socket: &Path,
    path: &str,
    body: &impl Serialize,
    patience: Duration,
) -> Result<(), Failure> {
    converse(socket, connect_timed(socket, patience)?, "PUT", path, body).map(drop)
}

/// As [`put`], with `PATCH path`.
///
/// # Errors
/// As [`put`].
pub(crate) fn patch(socket: &Path, path: &str, body: &impl Serialize) -> Result<(), Failure> {
    request(socket, "PATCH", path, body).map(drop)
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

/// Sends `DELETE path`, which a working server answers within `patience`.
///
/// # Errors
/// As [`put_within`].
pub(crate) fn delete_within(socket: &Path, path: &str, patience: Duration) -> Result<(), Failure> {
    converse(socket, connect_timed(socket, patience)?, "DELETE", path, &()).map(drop)
}

/// Returns the response to `GET path`.
///
/// # Errors
/// As [`post`].
pub(crate) fn get<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T, Failure> {
    decode(socket, "GET", path, &request(socket, "GET", path, &())?)
}

fn connect_timed(socket: &Path, patience: Duration) -> Result<Timed, Failure> {
    let stream = connect_within(socket, patience).map_err(|error| cannot_connect(socket, &error))?;
    Ok(Timed::new(stream, Some(patience)))
}

/// Connects, and waits so long for room in the server's backlog. Writes wait as long.
fn connect_within(socket: &Path, patience: Duration) -> io::Result<UnixStream> {
    let kind = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC);
    let stream = rustix::net::socket_with(kind.0, kind.1, kind.2, None)?;
    rustix::net::sockopt::set_socket_timeout(&stream, rustix::net::sockopt::Timeout::Send, Some(patience))?;
    rustix::net::connect(&stream, &SocketAddrUnix::new(socket)?)?;
    Ok(stream.into())
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

/// Sends `GET path` to many servers at once, and waits for their answers up to `limit`. A server that does
/// not answer with a `T` in time gets `None`.
pub(crate) fn get_all<T: DeserializeOwned>(sockets: &[&Path], path: &str, limit: Duration) -> Vec<Option<T>> {
    gathered(sockets, path, limit, |body| serde_json::from_slice(body).ok())
}

/// As [`get_all`], for answers that are text.
pub(crate) fn get_all_texts(sockets: &[&Path], path: &str, limit: Duration) -> Vec<Option<String>> {
    gathered(sockets, path, limit, |body| String::from_utf8(body.to_vec()).ok())
}

fn gathered<T>(
    sockets: &[&Path],
    path: &str,
    limit: Duration,
    decode: impl Fn(&[u8]) -> Option<T>,
) -> Vec<Option<T>> {
    let mut answers: Vec<Option<T>> = sockets.iter().map(|_| None).collect();
    get_each(sockets, path, Patience { limit, at_once: sockets.len() }, |number, answer| {
        answers[number] = answer.and_then(&decode);
    });
    answers
}

/// How long [`get_each`] waits for each server, and how many it asks at the same time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) limit: Duration,
    pub(crate) at_once: usize,
}

/// Sends `GET path` to many servers, and passes the number of each to `answered`, with the body of its answer
/// if it answers in time and does not refuse. It is one thread: many would wait for each other longer than
/// for the servers.
pub(crate) fn get_each(
    sockets: &[&Path],
    path: &str,
    patience: Patience,
    mut answered: impl FnMut(usize, Option<&[u8]>),
) {
    let head = head_of("GET", path, 0);
    let mut next = sockets.iter().enumerate();
    let mut asked: Vec<Asked> = Vec::new();
    loop {
        while asked.len() < patience.at_once.max(1)
            && let Some((number, socket)) = next.next()
        {
            match Asked::ask(number, socket, head.as_bytes(), patience.limit) {
                Some(one) => asked.push(one),
                None => answered(number, None),
            }
        }
        let Some(until) = asked.iter().map(|one| one.until).min() else { return };
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        let mut polled: Vec<_> = asked.iter().map(|one| PollFd::new(&one.stream, PollFlags::IN)).collect();
        // After an error such as EINTR, none is ready.
        let _ = poll(&mut polled, left.as_ref());
        let is_ready: Vec<_> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
        let now = Instant::now();
        let mut is_ready = is_ready.into_iter();
        asked.retain_mut(|one| {
            let is_at_end = is_ready.next() == Some(true) && !one.read_some();
            if is_at_end {
                answered(one.number, one.body());
            } else if now >= one.until {
                answered(one.number, None);
            }
            !is_at_end && now < one.until
        });
    }
}

/// A server that was asked.
struct Asked {
    number: usize,
    stream: UnixStream,
    answer: Vec<u8>,
    until: Instant,
}

impl Asked {
    fn ask(number: usize, socket: &Path, head: &[u8], limit: Duration) -> Option<Self> {
        let mut stream = connect_without_waiting(socket).ok()?;
        stream.write_all(head).ok()?;
        Some(Self { number, stream, answer: Vec::new(), until: Instant::now() + limit })
    }

    /// Reads a part of the answer. Returns false at its end.
    fn read_some(&mut self) -> bool {
        let mut buffer = [0; 16 << 10];
        match self.stream.read(&mut buffer) {
            Ok(count) => {
                self.answer.extend_from_slice(&buffer[..count]);
                count > 0 && self.answer.len() as u64 <= RESPONSE_LIMIT
            }
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }

    /// The body of the answer, unless it is incomplete or a refusal.
    fn body(&self) -> Option<&[u8]> {
        match parse(&self.answer)? {
            Response { status: 200..=299, body } => Some(body),
            _ => None,
        }
    }
}

/// Connects, or fails if the server's queue of connections is full.
fn connect_without_waiting(socket: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&stream, &SocketAddrUnix::new(socket)?)?;
    Ok(stream.into())
}

/// Returns the id of the process that serves the socket.
///
/// # Errors
/// As [`put`]; or the process is outside this pid namespace.
pub(crate) fn process_of(socket: &Path) -> Result<i32, Failure> {
    let unknown = || Failure::socket(socket, "cannot tell who serves it: it is outside this pid namespace");
    visible_process_of(socket)?.ok_or_else(unknown)
}

/// As [`process_of`]. Returns `None` for a process outside this pid namespace.
///
/// # Errors
/// As [`put`].
pub(crate) fn visible_process_of(socket: &Path) -> Result<Option<i32>, Failure> {
    let unknown = |error| Failure::socket(socket, format!("cannot tell who serves it: {error}"));
    let peer = peer_of(connect(socket)?).map_err(unknown)?;
    Ok(peer.process.and_then(|process| process.try_into().ok()))
}

/// Sends a request and returns the body of the response.
fn request(socket: &Path, method: &str, path: &str, body: &impl Serialize) -> Result<Vec<u8>, Failure> {
    converse(socket, connect(socket)?, method, path, body)
}

/// Sends a request over a connection and returns the body of the response.
fn converse(
    socket: &Path,
    mut stream: impl Read + Write,
    method: &str,
    path: &str,
    body: &impl Serialize,
) -> Result<Vec<u8>, Failure> {
    let body = serde_json::to_vec(body).map_err(|error| {
        Failure::socket(socket, format!("cannot encode the request {method} {path} as JSON: {error}"))
    })?;
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
        refusal => Err(refusal.failure(method, path)),
    }
}

fn connect(socket: &Path) -> Result<UnixStream, Failure> {
    UnixStream::connect(socket).map_err(|error| cannot_connect(socket, &error))
}

fn cannot_connect(socket: &Path, error: &io::Error) -> Failure {
    let problem = match error.kind() {
        ErrorKind::NotFound => "no such file; is a volt-vmm running with this --api-socket?".into(),
        ErrorKind::ConnectionRefused => "no process listens; the volt-vmm that created it has ended".into(),
        _ => format!("cannot connect: {error}"),
    };
    Failure::socket(socket, problem)
}

fn head_of(method: &str, path: &str, length: usize) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept: application/json\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
}

fn exchange(stream: &mut (impl Read + Write), method: &str, path: &str, body: &[u8]) -> io::Result<Vec<u8>> {
    let head = head_of(method, path, body.len());
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

impl Response<'_> {
    /// The error that a refusal tells.
    fn failure(&self, method: &str, path: &str) -> Failure {
        let Self { status, body } = self;
        let fault = FaultMessage::deserialize(&mut serde_json::Deserializer::from_slice(body));
        let text = fault.map(|fault| fault.report(cures::as_option));
        Failure::Server(
            text.unwrap_or_else(|_| format!("{method} {path}: the server returned status {status}")),
        )
    }
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
    fn many_servers_are_asked_at_once_and_the_silent_ones_left_out() {
        let servers = [(); 3].map(|()| crate::rest::testing::Serving::start());
        let dir = crate::rest::testing::Dir::new();
        let (gone, silent) = (dir.path("gone"), dir.path("silent"));
        let _listener = std::os::unix::net::UnixListener::bind(&silent).unwrap();
        let sockets = [&servers[0].socket, &gone, &servers[1].socket, &silent, &servers[2].socket];
        let sockets = sockets.map(std::path::PathBuf::as_path);
        let started = Instant::now();
        let found = get_all::<serde_json::Value>(&sockets, "/", Duration::from_millis(500));
        assert!(started.elapsed() < Duration::from_secs(5));
        let found: Vec<_> =
            found.iter().map(|answer| answer.as_ref().map(|answer| &answer["state"])).collect();
        let idle = serde_json::json!("Not started");
        assert_eq!(found, [Some(&idle), None, Some(&idle), None, Some(&idle)]);
    }

    #[test]
    fn server_that_does_not_answer_is_given_up_in_time() {
        let dir = crate::rest::testing::Dir::new();
        let silent = dir.path("silent");
        let _listener = std::os::unix::net::UnixListener::bind(&silent).unwrap();
        let started = Instant::now();
        let error = put_within(&silent, "/v1/stop", &(), Duration::from_millis(200)).unwrap_err();
        assert!(error.to_string().contains("the connection broke during PUT /v1/stop"), "{error}");
        assert!((200..5000).contains(&started.elapsed().as_millis()));
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
