//! The host's ends of vsock connections, and what is sent over them.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::patience::{patience, wait_until};

/// Connects to a port of the guest whose vsock device has this socket, as soon as the guest accepts.
///
/// # Panics
/// It does not in time.
#[must_use]
pub fn connect(socket: &Path, port: u32) -> UnixStream {
    let mut found = None;
    wait_until("the guest accepts", || {
        found = UnixStream::connect(socket).ok().filter(|stream| is_accepted(stream, port));
        found.is_some()
    });
    found.expect("just found")
}

fn is_accepted(mut stream: &UnixStream, port: u32) -> bool {
    stream.set_read_timeout(Some(patience())).expect("set a time limit");
    let asked = writeln!(stream, "CONNECT {port}");
    let mut answer = Vec::new();
    while asked.is_ok() && answer.last() != Some(&b'\n') {
        let mut byte = [0];
        if !matches!(stream.read(&mut byte), Ok(1)) {
            return false;
        }
        answer.push(byte[0]);
    }
    assert!(asked.is_err() || answer.starts_with(b"OK "), "{answer:?}");
    asked.is_ok()
}

/// Listens where connections of the guest to this port of the host arrive, in the place of whoever did so before.
///
/// # Panics
/// The directory cannot be written.
#[must_use]
pub fn listen(socket: &Path, port: u32) -> UnixListener {
    let path = format!("{}_{port}", socket.display());
    let _ = std::fs::remove_file(&path);
    UnixListener::bind(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Sends bytes, and checks that the same come back.
///
/// # Panics
/// They do not.
pub fn echoes(mut stream: &UnixStream, bytes: &[u8]) {
    stream.set_read_timeout(Some(patience())).expect("set a time limit");
    std::thread::scope(|scope| {
        let mut sender = stream;
        scope.spawn(move || sender.write_all(bytes).expect("send"));
        let mut found = vec![0; bytes.len()];
        stream.read_exact(&mut found).expect("receive");
        assert!(found == bytes, "other bytes came back");
    });
}
