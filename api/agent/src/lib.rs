//! The client of the agent in a guest: HTTP over the VM's vsock, blocking or for a loop of poll(2).
//!
//! The agent's calls are those of E2B (Connect with JSON) and ours below `/volt/` (docs/agent.md). A request
//! is one of HTTP/1.0 where its answer is a stream: the answer has no chunks, and ends with the connection.
//!
//! It is for the command line and for `volt-sandbox`, and no API of its own.

mod commands;
mod envelopes;
mod error;
mod files;
mod http;
mod input;
mod messages;
mod port;
mod session;
mod text;
mod timed;
mod trees;

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use commands::{Command, MainRefusal};
pub use error::{Error, Result};
pub use files::{FileEntry, FileKind};
pub use http::{Answer, Request};
pub use input::InputKind;
pub use messages::{CallError, Selected};
pub use port::PortStream;
pub use session::{End, Received, Session};
pub use text::{harmless, shown};
pub use timed::Timed;
pub use trees::{Cut, TreePlace, TreeSender};

/// The vsock port of the agent.
const PORT: u32 = 49983;
/// Longest time for an answer that needs no work.
const ANSWER: Duration = Duration::from_secs(10);
/// Longest answer of the host's side of the vsock to `CONNECT`.
const LONGEST_LINE: usize = 32;

/// The agent of one VM.
#[derive(Clone, Debug)]
pub struct Agent {
    /// The unix socket of the VM's vsock.
    socket: PathBuf,
}

impl Agent {
    /// The agent of the VM whose vsock has this unix socket.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    /// Makes sure that the agent answers now.
    ///
    /// # Errors
    /// It does not, or the VM has none.
    pub fn check(&self) -> Result<()> {
        self.call(&Request::new("GET", "/health")).map(drop)
    }

    /// Connects to the agent's port.
    fn connect(&self) -> io::Result<UnixStream> {
        self.connect_within(ANSWER).map(Timed::into_inner)
    }

    /// Connects to the agent's port. The time goes on to count for the answer.
    fn connect_within(&self, patience: Duration) -> io::Result<Timed> {
        let stream = UnixStream::connect(&self.socket)?;
        stream.set_write_timeout(Some(patience))?;
        let mut stream = Timed::new(stream, Some(patience));
        stream.write_all(format!("CONNECT {PORT}\n").as_bytes())?;
        greeted(stream)
    }

    /// As [`Agent::ask`], with so little time for all of it.
    fn ask_shortly(&self, patience: Duration, request: &Request<'_>) -> io::Result<Answer> {
        let mut stream = self.connect_within(patience)?;
        request.write(&mut stream)?;
        Answer::read(stream)
    }

    /// Sends a request and reads the head of the answer, in at most 10 s.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn ask(&self, request: &Request<'_>) -> io::Result<Answer> {
        self.ask_within(ANSWER, request)
    }

    /// As [`Agent::ask`], of work that may take the guest so long.
    fn ask_within(&self, patience: Duration, request: &Request<'_>) -> io::Result<Answer> {
        let mut stream = self.connect()?;
        request.write(&mut stream)?;
        Answer::read(Timed::new(stream, Some(patience)))
    }

    fn call(&self, request: &Request<'_>) -> Result<Answer> {
        self.ask(request).map_err(Error::from)
    }
}

/// Reads the line by which the host's side of the vsock tells that the guest has accepted.
///
/// # Errors
/// No program listens in the guest.
pub fn greeted(mut stream: Timed) -> io::Result<Timed> {
    let mut line = Vec::new();
    let mut byte = [0];
    while byte != *b"\n" {
        match stream.read(&mut byte) {
            // By a signal, for which the program may have a handler.
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Ok(1) if line.len() < LONGEST_LINE => line.push(byte[0]),
            Ok(_) => return Err(ErrorKind::ConnectionRefused.into()),
            Err(error) => return Err(error),
        }
    }
    if line.starts_with(b"OK ") { Ok(stream) } else { Err(ErrorKind::ConnectionRefused.into()) }
}
