//! A client of a REST API at a Unix socket. It parses as little of an answer as it can.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use crate::{OrSay, Result};

/// Longest wait for a socket or an answer.
const LIMIT: Duration = Duration::from_secs(10);
/// The end of an answer's head.
const END_OF_HEAD: &[u8] = b"\r\n\r\n";

/// The text of a request; without a body, if `body` is empty.
#[must_use]
pub fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n");
    match body {
        "" => format!("{head}\r\n"),
        body => {
            format!("{head}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        }
    }
    .into_bytes()
}

/// A connection to the API.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    answer: Vec<u8>,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// No process listens.
    pub fn open(socket: &Path) -> Result<Self> {
        UnixStream::connect(socket).or_say(&format!("reach {}", socket.display())).and_then(Self::over)
    }

    fn over(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(LIMIT)).or_say("set a time limit")?;
        Ok(Self { stream, answer: Vec::with_capacity(4096) })
    }

    /// Sends a request. Its answer is not read.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn send(&mut self, request: &[u8]) -> Result<()> {
        self.stream.write_all(request).or_say("send a request")
    }

    /// Sends a request and reads its answer.
    ///
    /// # Errors
    /// The status is not of success, or no whole answer comes within 10 s.
    pub fn ask(&mut self, request: &[u8]) -> Result<()> {
        self.send(request)?;
        self.read_answer()
    }

    /// Reads the answer to a request that was sent.
    ///
    /// # Errors
    /// As [`Connection::ask`].
    pub fn read_answer(&mut self) -> Result<()> {
        self.answer.clear();
        let mut buffer = [0; 4096];
        while !is_whole(&self.answer) {
            match self.stream.read(&mut buffer).or_say("read an answer")? {
                0 => return Err(format!("the API hung up after {:?}", self.text())),
                read => self.answer.extend_from_slice(&buffer[..read]),
            }
        }
        match self.answer.starts_with(b"HTTP/1.1 2") {
            true => Ok(()),
            false => Err(format!("the API refuses: {}", self.text())),
        }
    }

    /// The stream, to be waited for.
    #[must_use]
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.answer).into_owned()
    }
}

/// Whether an answer has its head and as many bytes as the head says.
fn is_whole(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(END_OF_HEAD.len()).position(|bytes| bytes == END_OF_HEAD) else {
        return false;
    };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    answer.len() >= end + END_OF_HEAD.len() + length.unwrap_or(0)
}

/// A directory in which a socket is about to appear. The kernel reports it, so that the wait takes no time of
/// a processor. To end a watch takes milliseconds, so it is kept from one run to the next.
#[derive(Debug)]
pub struct SocketDirectory {
    path: PathBuf,
    watch: OwnedFd,
}

impl SocketDirectory {
    /// Watches a directory.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn watch(path: PathBuf) -> Result<Self> {
        let watch = inotify::init(CreateFlags::CLOEXEC).or_say("watch a directory")?;
        inotify::add_watch(&watch, &path, WatchFlags::CREATE | WatchFlags::MOVED_TO)
            .or_say(&format!("watch {}", path.display()))?;
        Ok(Self { path, watch })
    }

    /// The path of a socket in it.
    #[must_use]
    pub fn socket(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Connects to a socket in it as soon as a process listens.
    ///
    /// # Errors
    /// No process listens within 10 s.
    pub fn connect(&self, socket: &Path) -> Result<Connection> {
        let start = Instant::now();
        loop {
            match UnixStream::connect(socket) {
                Ok(stream) => return Connection::over(stream),
                Err(error) if start.elapsed() > LIMIT => {
                    return Err(error).or_say(&format!("reach {}", socket.display()));
                }
                // An event of an earlier run ends a wait too soon, and then the next one comes.
                Err(error) if error.kind() == ErrorKind::NotFound => self.wait()?,
                // The process is between bind(2) and listen(2).
                Err(_) => thread::yield_now(),
            }
        }
    }

    /// Waits for a new file in the directory.
    fn wait(&self) -> Result<()> {
        let limit = Timespec::try_from(LIMIT).or_say("set a time limit")?;
        let mut files = [PollFd::new(&self.watch, PollFlags::IN)];
        match poll(&mut files, Some(&limit)).or_say("wait for a socket")? {
            0 => Ok(()),
            // An event that is not read would end the next wait at once.
            _ => rustix::io::read(&self.watch, &mut [0; 4096]).map(drop).or_say("read an event"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_whole_with_the_body_that_its_head_announces() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        assert!(is_whole(answer));
        assert!((0..answer.len()).all(|len| !is_whole(&answer[..len])));
        assert!(is_whole(b"HTTP/1.1 204 No Content\r\n\r\n"));
    }

    #[test]
    fn request_announces_its_body() {
        assert_eq!(request("GET", "/", ""), b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(request("PUT", "/a", "{}").ends_with(b"Content-Length: 2\r\n\r\n{}"));
    }
}
