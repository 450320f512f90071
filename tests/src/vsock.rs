//! The host's ends of vsock connections.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::patience::wait_until;
use crate::streams::Limited;

/// Connects to a port of the guest behind this vsock socket, as soon as the guest accepts.
///
/// # Panics
/// The guest does not accept in time.
#[must_use]
pub fn connect(socket: &Path, port: u32) -> UnixStream {
    let mut found = None;
    wait_until("the guest accepts", || {
        found = try_connect(socket, port);
        found.is_some()
    });
    found.expect("just found")
}

/// Connects if the guest accepts now.
///
/// # Panics
/// The device gives a wrong answer.
#[must_use]
pub fn try_connect(socket: &Path, port: u32) -> Option<UnixStream> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.limit().ok()?;
    writeln!(stream, "CONNECT {port}").ok()?;
    let mut answer = Vec::new();
    while answer.last() != Some(&b'\n') {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        answer.push(byte[0]);
    }
    assert!(answer.starts_with(b"OK "), "{answer:?}");
    Some(stream)
}

/// Listens for connections of the guest to this port of the host, and replaces an earlier listener.
///
/// # Panics
/// The directory cannot be written.
#[must_use]
pub fn listen(socket: &Path, port: u32) -> UnixListener {
    let path = format!("{}_{port}", socket.display());
    let _ = std::fs::remove_file(&path);
    UnixListener::bind(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}
