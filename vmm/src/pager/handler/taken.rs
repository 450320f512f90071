//! Whether the process at the other end of a stream has read what was sent to it, and whether it has gone.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// Time between two looks, at first and at most. It doubles with each.
const FIRST_LOOK: Duration = Duration::from_micros(50);
const LAST_LOOK: Duration = Duration::from_millis(10);

/// Waits until all is read.
///
/// # Errors
/// The other end is closed before, or `deadline` has passed.
pub(super) fn wait_until_taken(socket: &OwnedFd, deadline: Instant) -> io::Result<()> {
    let mut pause = FIRST_LOOK;
    loop {
        // Looked at first: a socket that is closed drops what it has not read after it reports an error.
        let left = unread(socket)?;
        match peek(socket) {
            Err(Errno::CONNRESET | Errno::PIPE) => return Err(closed()),
            _ if left == 0 => return Ok(()),
            _ if Instant::now() > deadline => {
                let why = "it has not read the message: it is stopped, or busy with others";
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            _ => thread::sleep(pause),
        }
        pause = (pause * 2).min(LAST_LOOK);
    }
}

/// The error of a connection that ended before its message was read.
pub(super) fn closed() -> io::Error {
    let why = "it closed the connection before it read the message";
    io::Error::new(io::ErrorKind::ConnectionReset, why)
}

/// Whether the other end sends no more, as after its process has ended.
pub(super) fn has_ended(socket: &OwnedFd) -> bool {
    matches!(peek(socket), Ok(0) | Err(Errno::CONNRESET | Errno::PIPE))
}

/// Number of bytes that wait to be read here; at most one.
fn peek(socket: &OwnedFd) -> rustix::io::Result<usize> {
    let mut byte = [0];
    recv(socket, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT).map(|(_, count)| count)
}

/// The memory of what the other end has not read (`SIOCOUTQ`, unix(7)).
fn unread(socket: &OwnedFd) -> io::Result<i32> {
    let mut left = 0;
    // SAFETY: the call writes an integer.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut left) } {
        0 => Ok(left),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pair_with_message() -> (OwnedFd, UnixStream) {
        let (mut near, far) = UnixStream::pair().unwrap();
        near.write_all(b"message").unwrap();
        (near.into(), far)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(50)
    }

    #[test]
    fn message_counts_as_taken_once_it_is_read() {
        let (near, mut far) = pair_with_message();
        let error = wait_until_taken(&near, soon()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        far.read_exact(&mut [0; 7]).unwrap();
        wait_until_taken(&near, soon()).unwrap();
        assert!(!has_ended(&near));
    }

    #[test]
    fn end_counts_as_an_error_only_before_the_message_is_read() {
        let (near, far) = pair_with_message();
        drop(far);
        let error = wait_until_taken(&near, soon()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        let (near, mut far) = pair_with_message();
        far.read_exact(&mut [0; 7]).unwrap();
        drop(far);
        wait_until_taken(&near, soon()).unwrap();
        assert!(has_ended(&near));
    }
}
