//! A stream of which all reads end at one time, however few bytes each of them gets.
//!
//! It waits by poll(2), since a confined process may set no option of a socket.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// See the module.
#[derive(Debug)]
pub struct Timed {
    stream: UnixStream,
    /// Absent if reads may take any time.
    end: Option<Instant>,
    /// Reads also end once this is readable.
    ended: Option<OwnedFd>,
}

impl Timed {
    /// Reads end after `patience` from now, or never.
    #[must_use]
    pub fn new(stream: UnixStream, patience: Option<Duration>) -> Self {
        Self { stream, end: patience.map(|patience| Instant::now() + patience), ended: None }
    }

    /// Reads of a silent stream also end once a descriptor is readable.
    #[must_use]
    pub fn or_until(self, ended: OwnedFd) -> Self {
        Self { ended: Some(ended), ..self }
    }

    /// Returns the stream, whose reads may take any time again.
    #[must_use]
    pub fn into_inner(self) -> UnixStream {
        self.stream
    }
}

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if let Some(end) = self.end {
            let left = end.saturating_duration_since(Instant::now());
            let limit = Timespec::try_from(left).ok();
            // Without the other descriptor, the stream is watched twice.
            let ended = self.ended.as_ref().map_or(self.stream.as_fd(), |ended| ended.as_fd());
            let mut ready =
                [self.stream.as_fd(), ended].map(|watched| PollFd::from_borrowed_fd(watched, PollFlags::IN));
            // Also a stream that always has a byte ends.
            if left.is_zero() || poll(&mut ready, limit.as_ref())? == 0 {
                return Err(ErrorKind::TimedOut.into());
            }
            if ready[0].revents().is_empty() {
                return Err(ErrorKind::ConnectionAborted.into());
            }
        }
        self.stream.read(bytes)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_after_byte_does_not_prolong_the_time() {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(&[0; 8]).unwrap();
        let mut timed = Timed::new(near, Some(Duration::from_millis(40)));
        let mut read = || timed.read(&mut [0]);
        assert_eq!(read().unwrap(), 1);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(read().unwrap_err().kind(), ErrorKind::TimedOut);
        drop(far);
        assert_eq!(timed.into_inner().read(&mut [0; 8]).unwrap(), 7);
    }

    #[test]
    fn silent_stream_ends_with_the_other_descriptor() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let (ended, ends) = UnixStream::pair().unwrap();
        let mut timed = Timed::new(near, Some(Duration::from_secs(60))).or_until(ended.into());
        drop(ends);
        far.write_all(b"x").unwrap();
        assert_eq!(timed.read(&mut [0]).unwrap(), 1, "what has come is read first");
        assert_eq!(timed.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionAborted);
    }

    #[test]
    fn silent_stream_ends_after_the_time() {
        let (near, _far) = UnixStream::pair().unwrap();
        let error = Timed::new(near, Some(Duration::from_millis(5))).read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
