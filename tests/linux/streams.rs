//! The host's ends of streams to and from the guest, over TCP or vsock, and what goes over them.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use volt_tests::wait_until;

/// Connects to a port of the guest's over vsock, as soon as that listens.
pub(crate) fn vsock_connect(socket: &Path, port: u32) -> UnixStream {
    let mut found = None;
    wait_until("the guest listens", || {
        found = try_vsock_connect(socket, port);
        found.is_some()
    });
    found.unwrap()
}

/// The same if it listens.
pub(crate) fn try_vsock_connect(socket: &Path, port: u32) -> Option<UnixStream> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
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

/// Sends something to whoever echoes, and compares what comes back.
pub(crate) fn echoes<S: Sync>(stream: &S, bytes: &[u8])
where
    for<'a> &'a S: Read + Write,
{
    let (mut sender, mut receiver) = (stream, stream);
    std::thread::scope(|scope| {
        scope.spawn(move || sender.write_all(bytes).unwrap());
        let mut found = vec![0; bytes.len()];
        receiver.read_exact(&mut found).unwrap();
        assert!(found == bytes, "other bytes came back");
    });
}

/// Sends back what comes, to the end of the stream. Says how much that was.
pub(crate) fn send_back<S>(stream: &S) -> u64
where
    for<'a> &'a S: Read + Write,
{
    let (mut from, mut to) = (stream, stream);
    std::io::copy(&mut from, &mut to).unwrap_or(0)
}

/// Bytes that no other number's stream has.
pub(crate) fn bytes_of(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 3 + at / 253 + number * 89) as u8).collect()
}
