//! What goes over a stream to or from the guest, over TCP or vsock.

use std::io::{Read, Write};

/// Sends something to whoever echoes, and compares what comes back.
///
/// # Panics
/// It is something else, or the stream ends.
pub fn echoes<S: Sync>(stream: &S, bytes: &[u8])
where
    for<'a> &'a S: Read + Write,
{
    let (mut sender, mut receiver) = (stream, stream);
    std::thread::scope(|scope| {
        scope.spawn(move || sender.write_all(bytes).expect("send"));
        let mut found = vec![0; bytes.len()];
        receiver.read_exact(&mut found).expect("receive");
        assert!(found == bytes, "other bytes came back");
    });
}

/// Sends back what comes, to the end of the stream. Says how much that was.
pub fn send_back<S>(stream: &S) -> u64
where
    for<'a> &'a S: Read + Write,
{
    let (mut from, mut to) = (stream, stream);
    std::io::copy(&mut from, &mut to).unwrap_or(0)
}

/// Bytes that no other number's stream has.
#[must_use]
pub fn bytes_of(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 3 + at / 253 + number * 89) as u8).collect()
}
