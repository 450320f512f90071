//! The input of a command: a stream of messages, each a chunk of one request (RFC 9112, 7.1).

use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use crate::Agent;
use crate::envelopes::pack;
use crate::messages::{Bytes, Selected, Typed};

/// Most bytes of one message.
const PIECE: usize = 16 << 10;
const HEAD: &str = "POST /process.Process/StreamInput HTTP/1.1\r\nHost: localhost\r\n\
                    Content-Type: application/connect+json\r\nConnect-Protocol-Version: 1\r\n\
                    Transfer-Encoding: chunked\r\n";
/// The field after which the end of the input is that of the command's.
const WHOLE: &str = "Volt-Close: yes\r\n";

/// The kind of a command's input.
#[derive(Clone, Copy, Debug)]
pub struct InputKind {
    /// Whether it is that of a terminal.
    pub is_terminal: bool,
    /// Whether no other client gives more of it: its end is the end for the command.
    pub is_whole: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Input {
    stream: UnixStream,
    is_terminal: bool,
    /// Bytes that have not left.
    waiting: Vec<u8>,
    has_ended: bool,
}

impl Input {
    /// Begins the input of a command.
    ///
    /// # Errors
    /// The agent is not reached.
    pub(crate) fn open(agent: &Agent, command: &Selected, kind: InputKind) -> io::Result<Self> {
        let stream = agent.connect()?;
        let InputKind { is_terminal, is_whole } = kind;
        let mut waiting = [HEAD, if is_whole { WHOLE } else { "" }, "\r\n"].concat().into_bytes();
        waiting.extend(chunk(&Typed::Start { process: command }));
        (&stream).write_all(&waiting)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, is_terminal, waiting: Vec::new(), has_ended: false })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(crate) fn is_sending(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes bytes once all earlier ones have left.
    ///
    /// # Errors
    /// `WouldBlock`, or the agent has closed the connection.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.flush()?;
        if bytes.is_empty() || self.has_ended {
            return Ok(bytes.len());
        }
        let piece = &bytes[..bytes.len().min(PIECE)];
        let text = STANDARD.encode(piece);
        let input = if self.is_terminal { Bytes::Pty(text) } else { Bytes::Stdin(text) };
        self.waiting = chunk(&Typed::Data { input });
        match self.flush() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(piece.len()),
            flushed => flushed.map(|()| piece.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.waiting.is_empty() {
            match self.stream.write(&self.waiting) {
                Ok(count) => drop(self.waiting.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(error),
                Err(error) => {
                    // The command reads no more.
                    self.waiting.clear();
                    self.has_ended = true;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Ends the input: the last chunk is empty. The agent closes the command's pipe then.
    pub(crate) fn end(&mut self) {
        if !self.has_ended {
            self.has_ended = true;
            self.waiting.extend_from_slice(b"0\r\n\r\n");
            // The loop goes on with what the connection does not take now.
            let _ = self.flush();
        }
    }
}

fn chunk(message: &impl Serialize) -> Vec<u8> {
    let message = pack(message);
    let mut bytes = format!("{:x}\r\n", message.len()).into_bytes();
    bytes.extend_from_slice(&message);
    bytes.extend_from_slice(b"\r\n");
    bytes
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn input() -> (Input, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        (Input { stream: near, is_terminal: false, waiting: Vec::new(), has_ended: false }, far)
    }

    #[test]
    fn input_is_chunks_of_messages_up_to_the_empty_one() {
        let (mut input, mut far) = input();
        assert_eq!(input.send(b"hi").unwrap(), 2);
        input.end();
        input.end();
        drop(input);
        let mut sent = String::new();
        far.read_to_string(&mut sent).unwrap();
        let json = r#"{"data":{"input":{"stdin":"aGk="}}}"#;
        let head = format!("{:x}\r\n\0\0\0\0{}", json.len() + 5, char::from(json.len() as u8));
        assert_eq!(sent, format!("{head}{json}\r\n0\r\n\r\n"));
    }

    #[test]
    fn command_that_reads_no_more_leaves_nothing_to_send() {
        let (mut input, far) = input();
        while input.send(&[0; PIECE]).is_ok() {}
        assert!(input.is_sending(), "the connection is full");
        drop(far);
        assert_ne!(input.send(b"more").unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(!input.is_sending());
        assert_eq!(input.send(b"more").unwrap(), 4, "later input goes nowhere");
    }
}
