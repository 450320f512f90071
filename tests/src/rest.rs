//! A client of the REST API, which writes HTTP into the unix socket by hand.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::patience::wait_until;
use crate::streams::Limited;

/// Connects to `socket` as soon as a process listens.
///
/// # Panics
/// No process listens in time.
#[must_use]
pub fn connect(socket: &Path) -> UnixStream {
    let mut stream = None;
    wait_until(&format!("{} is served", socket.display()), || {
        stream = UnixStream::connect(socket).ok();
        stream.is_some()
    });
    stream.expect("just connected")
}

/// Sends a request. Returns status and body of the answer.
///
/// # Panics
/// The answer is not whole.
pub fn ask(socket: &Path, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = connect(socket);
    stream.limit().expect("set a time limit");
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).expect("send a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap_or_else(|error| panic!("{method} {path}: {error}: {answer:?}"));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{method} {path}: {answer:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("{method} {path}: {answer:?}")), body.to_owned())
}

/// Returns what a VM reports about memory that is read or mapped ahead of its guest: null if none is.
///
/// # Panics
/// The VM does not answer.
#[must_use]
pub fn mapped_ahead(socket: &Path) -> serde_json::Value {
    let (status, memory) = ask(socket, "GET", "/v1/vm/memory", "");
    assert_eq!(status, 200, "{memory}");
    serde_json::from_str::<serde_json::Value>(&memory).expect("JSON")["prefetch"].take()
}
