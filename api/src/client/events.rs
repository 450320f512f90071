//! The stream of a VM's events (`GET /v1/vm/events`), read without blocking.
//!
//! The request is one of HTTP/1.0: its answer has no chunks, and ends with the connection.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::{RESPONSE_LIMIT, connect_without_waiting, parse};
use crate::failure::Failure;
use crate::rest::Event;

const PATH: &str = "/v1/vm/events";
const END_OF_HEAD: &[u8] = b"\r\n\r\n";

/// A stream that a server has accepted, or will.
#[derive(Debug)]
pub(crate) struct EventStream {
    stream: UnixStream,
    /// The answer, without the events that were taken.
    unread: Vec<u8>,
    has_head: bool,
}

impl EventStream {
    /// Asks the server at `socket`.
    ///
    /// # Errors
    /// No process listens, or too many clients wait for it.
    pub(crate) fn open(socket: &Path) -> io::Result<Self> {
        let mut stream = connect_without_waiting(socket)?;
        let head = format!("GET {PATH} HTTP/1.0\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        Ok(Self { stream, unread: Vec::new(), has_head: false })
    }

    /// Takes the events that have come. The second value is false at the end of the stream.
    ///
    /// # Errors
    /// The server refuses.
    pub(crate) fn take(&mut self) -> Result<(Vec<Event>, bool), Failure> {
        let is_open = self.receive();
        let events = if self.accepted(is_open)? { self.events() } else { Vec::new() };
        Ok((events, is_open))
    }

    /// Reads what has come. Returns false at the end.
    fn receive(&mut self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(count) => self.unread.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
            // A line of no end comes from no server of ours.
            if self.unread.len() as u64 > RESPONSE_LIMIT {
                return false;
            }
        }
    }

    /// Whether the head has come, and says that events follow. A refusal is told once it is complete.
    fn accepted(&mut self, is_open: bool) -> Result<bool, Failure> {
        if self.has_head {
            return Ok(true);
        }
        let mut windows = self.unread.windows(END_OF_HEAD.len());
        let Some(end) = windows.position(|window| window == END_OF_HEAD) else { return Ok(false) };
        let status = self.unread.split(|byte| *byte == b' ').nth(1);
        if status == Some(b"200") {
            self.has_head = true;
            self.unread.drain(..end + END_OF_HEAD.len());
            return Ok(true);
        }
        match parse(&self.unread) {
            Some(refusal) => Err(refusal.failure("GET", PATH)),
            None if is_open => Ok(false),
            None => Err(Failure::Server(format!("GET {PATH}: incomplete HTTP response"))),
        }
    }

    /// Takes whole lines. Each event is one line of data. One that this program does not know is left out.
    fn events(&mut self) -> Vec<Event> {
        let end = self.unread.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<_> = self.unread.drain(..end).collect();
        let data = lines.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data:"));
        data.filter_map(|json| serde_json::from_slice(json).ok()).collect()
    }
}

impl AsFd for EventStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::rest::testing::{Dir, Serving};
    use crate::rest::{EndCause, EventState};

    /// Takes events until there are so many, or the stream ends.
    fn taken(stream: &mut EventStream, count: usize) -> (Vec<Event>, bool) {
        let until = Instant::now() + Duration::from_secs(20);
        let mut all = Vec::new();
        loop {
            let (events, is_open) = stream.take().unwrap();
            all.extend(events);
            if all.len() >= count || !is_open {
                return (all, is_open);
            }
            assert!(Instant::now() < until, "{all:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn server_tells_the_present_state_first() {
        let server = Serving::start();
        let mut stream = EventStream::open(&server.socket).unwrap();
        let (events, is_open) = taken(&mut stream, 1);
        assert_eq!((events, is_open), (vec![Event::State { state: EventState::NotStarted }], true));
        assert_eq!(stream.take().unwrap(), (Vec::new(), true));
    }

    #[test]
    fn events_are_put_together_from_any_pieces() {
        let dir = Dir::new();
        let socket = dir.path("api");
        let listener = UnixListener::bind(&socket).unwrap();
        let mut stream = EventStream::open(&socket).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let answer = "HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: hello\n\n\
            event: state\ndata: {\"event\":\"state\",\"state\":\"running\"}\n\n\
            event: new\ndata: {\"event\":\"new\"}\n\n\
            event: ended\ndata: {\"event\":\"ended\",\"cause\":\"poweroff\"}\n\n";
        let mut all = Vec::new();
        for byte in answer.bytes() {
            server.write_all(&[byte]).unwrap();
            let (events, is_open) = stream.take().unwrap();
            assert!(is_open);
            all.extend(events);
        }
        drop(server);
        all.extend(taken(&mut stream, 9).0);
        let ended = Event::Ended { cause: EndCause::Poweroff, problem: None };
        assert_eq!(all, [Event::State { state: EventState::Running }, ended]);
    }

    #[test]
    fn refusal_is_told_with_the_words_of_the_server() {
        let dir = Dir::new();
        let socket = dir.path("api");
        let listener = UnixListener::bind(&socket).unwrap();
        let mut stream = EventStream::open(&socket).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server.write_all(b"HTTP/1.0 400 Bad Request\r\ncontent-length: 28\r\n\r\n").unwrap();
        assert_eq!(stream.take().unwrap(), (Vec::new(), true));
        server.write_all(b"{\"fault_message\":\"too many\"").unwrap();
        assert_eq!(stream.take().unwrap(), (Vec::new(), true));
        server.write_all(b"}").unwrap();
        assert!(stream.take().unwrap_err().to_string().contains("too many"));
    }
}
