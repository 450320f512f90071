//! Files and directories on their way into and out of a guest.

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use volt_job::tree::{PATH, Unpacked};

use crate::Agent;
use crate::error::{Error, Result};
use crate::http::{Answer, Request};
use crate::timed::Timed;

/// Bytes of one chunk of a request.
const CHUNK: usize = 64 << 10;

/// Where a guest takes a tree.
#[derive(Clone, Copy, Debug)]
pub struct TreePlace<'a> {
    /// The directory.
    pub directory: &'a str,
    /// The name of the first entry there; `.` is the directory itself.
    pub name: &'a str,
    /// `USER:GROUP` in numbers, or `keep`.
    pub owner: &'a str,
}

/// Ends a transfer from another thread.
#[derive(Debug)]
pub struct Cut(UnixStream);

impl Cut {
    /// Ends both directions. The transfer fails then.
    pub fn cut(&self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl Agent {
    /// Asks for the tree at a path. Returns the stream.
    ///
    /// # Errors
    /// The agent does not answer, or the path does not exist.
    pub fn fetch_tree(&self, path: &str) -> Result<(impl io::Read, Cut)> {
        let target = format!("{PATH}?path={}", encoded(path));
        let answer = self.call(&Request::new("GET", &target))?;
        if answer.status != 200 {
            return Err(answer.refusal());
        }
        let Answer { unread, stream, .. } = answer;
        let stream = stream.into_inner();
        let cut = unlimited(&stream)?;
        Ok((io::Read::chain(io::Cursor::new(unread), stream), cut))
    }

    /// Begins to send a tree.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn send_tree(&self, place: TreePlace<'_>) -> Result<(TreeSender, Cut)> {
        let TreePlace { directory, name, owner } = place;
        let [directory, name, owner] = [directory, name, owner].map(encoded);
        let mut stream = self.connect()?;
        let cut = unlimited(&stream)?;
        let head = format!(
            "POST {PATH}?path={directory}&name={name}&owner={owner} HTTP/1.1\r\nHost: localhost\r\n\
             Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        Ok((TreeSender { stream, chunk: Vec::new() }, cut))
    }
}

/// Lets the guest take its time.
fn unlimited(stream: &UnixStream) -> Result<Cut> {
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    Ok(Cut(stream.try_clone()?))
}

pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Takes the stream of a tree.
#[derive(Debug)]
pub struct TreeSender {
    stream: UnixStream,
    chunk: Vec<u8>,
}

impl TreeSender {
    /// Ends the stream. `written` is its fate: the agent's refusal explains a broken connection better.
    ///
    /// # Errors
    /// The agent refuses, or the stream failed.
    pub fn finish(mut self, written: io::Result<()>) -> Result<Unpacked> {
        let sent = written.and_then(|()| self.flush()).and_then(|()| self.stream.write_all(b"0\r\n\r\n"));
        if sent.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::BrokenPipe) {
            // The host could not read a file: the agent knows only that the stream broke off.
            return Err(Error::Copy(sent.expect_err("it is one")));
        }
        let answer = Answer::read(Timed::new(self.stream, None))?;
        if answer.status != 200 {
            return Err(answer.refusal());
        }
        sent?;
        let body = answer.body()?;
        serde_json::from_slice(&body)
            .map_err(|error| Error::Foreign(format!("sent what is no answer: {error}")))
    }
}

impl Write for TreeSender {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(CHUNK - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..taken]);
        if self.chunk.len() == CHUNK {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        // An empty chunk would end the request.
        if self.chunk.is_empty() {
            return Ok(());
        }
        self.stream.write_all(format!("{:x}\r\n", self.chunk.len()).as_bytes())?;
        self.stream.write_all(&self.chunk)?;
        self.chunk.clear();
        self.stream.write_all(b"\r\n")
    }
}
