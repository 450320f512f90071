//! Data over TCP and vsock streams to and from the guest.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::patience::patience;

/// A stream whose reads and writes end after [`patience`].
pub trait Limited {
    /// Sets these limits.
    ///
    /// # Errors
    /// The host refuses.
    fn limit(&self) -> io::Result<()>;
}

impl Limited for TcpStream {
    fn limit(&self) -> io::Result<()> {
        self.set_read_timeout(Some(patience()))?;
        self.set_write_timeout(Some(patience()))
    }
}

impl Limited for UnixStream {
    fn limit(&self) -> io::Result<()> {
        self.set_read_timeout(Some(patience()))?;
        self.set_write_timeout(Some(patience()))
    }
}

/// Waits until a socket can be read, or a listener has a connection. For threads that help a test: unlike
/// [`crate::limited`], a wait in vain ends them.
///
/// # Panics
/// The socket is not ready within [`patience`], in which `what` should have happened.
pub fn await_ready(what: &str, socket: &impl std::os::fd::AsFd) {
    let limit = Timespec { tv_sec: patience().as_secs().cast_signed(), tv_nsec: 0 };
    let mut sockets = [PollFd::new(socket, PollFlags::IN)];
    let ready = loop {
        match poll(&mut sockets, Some(&limit)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => break ready,
        }
    };
    assert_eq!(ready, Ok(1), "waited {:?} in vain until {what}", patience());
}

/// Gives each accepted connection to `act` until the flag is set.
///
/// # Panics
/// The host refuses.
pub fn each_stream(listener: &TcpListener, has_ended: &AtomicBool, mut act: impl FnMut(TcpStream)) {
    listener.set_nonblocking(true).expect("a listener that does not block");
    while !has_ended.load(Ordering::SeqCst) {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.limit().expect("set a time limit");
                act(stream);
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Sends bytes to an echo and compares the answer.
///
/// # Panics
/// Other bytes come back, the stream ends, or nothing comes in time.
pub fn echoes<S: Limited + Sync>(stream: &S, bytes: &[u8])
where
    for<'a> &'a S: Read + Write,
{
    stream.limit().expect("set a time limit");
    let (mut sender, mut receiver) = (stream, stream);
    std::thread::scope(|scope| {
        scope.spawn(move || sender.write_all(bytes).expect("the guest takes what is sent"));
        let mut found = vec![0; bytes.len()];
        receiver.read_exact(&mut found).expect("the sent bytes come back");
        assert!(found == bytes, "other bytes came back");
    });
}

/// Echoes a stream to its end and returns the number of bytes, or 0 if the stream breaks.
///
/// # Panics
/// The guest sends nothing, or does not read, in time.
pub fn send_back<S: Limited>(stream: &S) -> u64
where
    for<'a> &'a S: Read + Write,
{
    stream.limit().expect("set a time limit");
    let (mut from, mut to) = (stream, stream);
    io::copy(&mut from, &mut to).unwrap_or_else(|error| {
        let in_vain = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        assert!(!in_vain, "waited {:?} in vain until the guest sends, or takes what comes back", patience());
        0
    })
}

/// Returns bytes that differ from those of other numbers.
#[must_use]
pub fn bytes_of(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 3 + at / 253 + number * 89) as u8).collect()
}
